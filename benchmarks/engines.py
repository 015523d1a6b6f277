"""A resident base as a model of transformers, and resident adapters in it, beside what these libraries do from disk.

Both sides read what is in memory already: warmshelf its segment, the libraries their files in the page cache.
Each side's model is asked once, and both must say the same to the bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

import warmshelf
import warmshelf.peft
import warmshelf.transformers
from benchmarks import models
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, beside, best, faster

MODEL_TIMES_AIM = 5
ADAPTER_TIMES_AIM = 2
RANK = 16
SWITCH_COUNT = 10
"""Samples in each round: one takes milliseconds."""

HEAD_WIDTH = 64
VOCABULARY_TIMES = 64
"""Tokens for each column: the proportion of a small model, whose embedding is much of it."""

BASE_ID, ADAPTER_ID, OTHER_ID = "bench/llama", "bench/llama-lora", "bench/llama-other"
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OURS = "warmshelf"
"""Begins the labels of our side; the others begin with the library's name."""

SWITCH = f"{OURS} switch"


def run(context: Context) -> list[Row]:
    """Load models in turn, then adapters into one model each."""
    watch = Stopwatch()
    with _quiet():
        base = _make_base(context)
        adapters = {each: _make_adapter(context, base, each) for each in (ADAPTER_ID, OTHER_ID)}
        size_bytes = sum(file.stat().st_size for path in (base, *adapters.values()) for file in path.iterdir())
        with context.daemon(size_bytes) as daemon, warmshelf.connect(daemon.address) as shelf:
            shelf.register(BASE_ID, base)
            for artifact_id, directory in adapters.items():
                shelf.register(artifact_id, directory, base=BASE_ID)
                shelf.acquire(artifact_id).release()
            shelf.acquire(BASE_ID).release()
            models.warm(base / "model.safetensors")
            context.wait_quiet(daemon.pid)
            _models(context, shelf, base, watch)
            _adapters(context, shelf, base, adapters, watch)
    return _rows(watch, base, adapters[ADAPTER_ID])


def _models(context: Context, shelf: warmshelf.Shelf, base: Path, watch: Stopwatch) -> None:
    def ours() -> Any:
        return warmshelf.transformers.load_model(shelf, BASE_ID)

    def theirs() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(base)

    _check_same(ours(), theirs())
    for _ in context.rounds():
        watch.call("transformers from_pretrained, cached", theirs)
        watch.call(f"{OURS} load_model", ours)


def _adapters(
    context: Context, shelf: warmshelf.Shelf, base: Path, directories: dict[str, Path], watch: Stopwatch
) -> None:
    """Put one of two adapters into a model that has the other, make it the active one, and switch there and back."""
    ours = warmshelf.peft.load_adapter(warmshelf.transformers.load_model(shelf, BASE_ID), shelf, OTHER_ID)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(plain, directories[OTHER_ID], OTHER_ID, autocast_adapter_dtype=False)

    def by_id() -> None:
        warmshelf.peft.load_adapter(ours, shelf, ADAPTER_ID)
        warmshelf.peft.switch(ours, ADAPTER_ID)

    def from_disk(*, empty: bool) -> None:
        theirs.load_adapter(directories[ADAPTER_ID], ADAPTER_ID, autocast_adapter_dtype=False, low_cpu_mem_usage=empty)
        theirs.set_adapter(ADAPTER_ID)

    by_id()
    from_disk(empty=False)
    _check_same(ours, theirs)
    for model in (ours, theirs):
        model.delete_adapter(ADAPTER_ID)
    sides: dict[str, tuple[Any, Callable[[], None]]] = {
        "peft load_adapter": (theirs, lambda: from_disk(empty=False)),
        "peft load_adapter, low_cpu_mem_usage": (theirs, lambda: from_disk(empty=True)),
        f"{OURS} load_adapter and switch": (ours, by_id),
    }
    for _ in context.rounds():
        for _ in range(SWITCH_COUNT):
            for label, (model, load) in sides.items():
                watch.call(label, load)
                if model is ours:
                    warmshelf.peft.switch(ours, OTHER_ID)
                    watch.call(SWITCH, lambda: warmshelf.peft.switch(ours, ADAPTER_ID))
                model.delete_adapter(ADAPTER_ID)


def _check_same(ours: Any, theirs: Any) -> None:
    tokens = torch.arange(1, 9).unsqueeze(0)
    with torch.no_grad():
        if not torch.equal(ours(input_ids=tokens).logits, theirs(input_ids=tokens).logits):
            raise RuntimeError("the two models do not say the same")


def _make_base(context: Context) -> Path:
    width = context.sizes.llama_width
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY_TIMES * width,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=context.sizes.llama_layer_count,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=max(1, width // HEAD_WIDTH // 4),
        tie_word_embeddings=True,
        pad_token_id=0,
        dtype=torch.bfloat16,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(context.folder / "llama")
    return context.folder / "llama"


def _make_adapter(context: Context, base: Path, artifact_id: str) -> Path:
    """Save an adapter of every linear module, with random weights: PEFT begins with zeros."""
    config = peft.LoraConfig(r=RANK, target_modules=MODULES, task_type="CAUSAL_LM")
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    directory = context.folder / artifact_id.replace("/", "-")
    adapted.save_pretrained(directory)
    return directory


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep these libraries' bars and warnings out of the report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.utils.logging.disable_progress_bar()
        yield


def _rows(watch: Stopwatch, base: Path, adapter: Path) -> list[Row]:
    model_mb = (base / "model.safetensors").stat().st_size / 1e6
    adapter_mb = (adapter / "adapter_model.safetensors").stat().st_size / 1e6
    disk = best(watch.sides("peft"))
    return [
        faster(
            "engines.model",
            f"a model of transformers, {model_mb:,.3g} MB, resident",
            watch.side(f"{OURS} load_model"),
            watch.side("transformers from_pretrained, cached"),
            MODEL_TIMES_AIM,
        ),
        faster(
            "engines.switch",
            f"switch by ID to an adapter that the model was given, {adapter_mb:,.3g} MB, beside loading it from disk",
            watch.side(SWITCH),
            disk,
            ADAPTER_TIMES_AIM,
        ),
        beside(
            "engines.adapter",
            f"give a model that has another adapter a resident one by its ID, {adapter_mb:,.3g} MB, and switch to it",
            watch.side(f"{OURS} load_adapter and switch"),
            disk,
            note="both sides' time is PEFT making a module for each place",
        ),
    ]

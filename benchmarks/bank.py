"""A decode step in which many rows use several adapters, with the bank and with peft, beside the base alone.

The model is the demo's, SmolLM2-135M in bf16, made once and kept in build/demo; ``--quick`` takes a tiny random one.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

import warmshelf
import warmshelf.torch
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, faster
from examples.demo_model import model_directory

ROW_COUNT, ADAPTER_COUNT, RANK = 32, 8, 16
PROMPT_TOKENS, STEP_COUNT = 8, 4
WARM_STEP_COUNT = 2

PEFT_RATIO_AIM = 3.0
BASE_RATIO_AIM = 0.6

OURS, PEFT, BASE = "bank", "peft, adapter_names", "base alone"
Step = Callable[[torch.Tensor, DynamicCache], torch.Tensor]


def run(context: Context) -> list[Row]:
    """Decode with all three in turn."""
    model, again = _model(context), _model(context)
    directories = [_adapter(model, context.folder / f"bank-{number}", number) for number in range(ADAPTER_COUNT)]
    adapted = _adapted(again, directories)
    owners = [row % ADAPTER_COUNT for row in range(ROW_COUNT)]
    bank = warmshelf.torch.AdapterBank(model, slot_count=ADAPTER_COUNT, rank_max=RANK, row_count_max=ROW_COUNT)
    room = sum(file.stat().st_size for directory in directories for file in directory.iterdir())
    watch = Stopwatch()
    with context.daemon(room) as daemon, warmshelf.connect(daemon.address) as shelf, torch.inference_mode():
        for number, directory in enumerate(directories):
            shelf.register(_id(number), directory)
        with bank.slots_for(shelf, map(_id, owners)) as slots, warmshelf.torch.apply_bank(model, bank):
            context.wait_quiet(daemon.pid)
            steps = _steps(model, adapted, bank, slots, owners)
            _compare(steps)
            for _ in context.rounds():
                for label, step in steps.items():
                    _measure(label, step, watch)
    return _rows(watch)


def _steps(
    model: Any, adapted: Any, bank: warmshelf.torch.AdapterBank, slots: warmshelf.torch.Slots, owners: list[int]
) -> Mapping[str, Step]:
    names = [str(owner) for owner in owners]

    def by_bank(tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        with bank.select(slots):
            return _logits(model, tokens, cache)

    return {
        OURS: by_bank,
        PEFT: lambda tokens, cache: _logits(adapted, tokens, cache, adapter_names=names),
        BASE: lambda tokens, cache: _logits(model, tokens, cache),
    }


def _logits(model: Any, tokens: torch.Tensor, cache: DynamicCache, **named: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=tokens, cache=cache, logits_to_keep=1, **named).logits
    return found


def _measure(label: str, step: Step, watch: Stopwatch) -> None:
    """Decode token after token after a prompt; each is a sample."""
    cache = DynamicCache()
    tokens = step(_prompt(), cache).argmax(-1)
    for number in range(WARM_STEP_COUNT + STEP_COUNT):
        with watch.time(label if number >= WARM_STEP_COUNT else "warming up"):
            logits = step(tokens, cache)
        tokens = logits.argmax(-1)


def _compare(steps: Mapping[str, Step]) -> None:
    """Make sure that bank and peft answer alike, and not as the base."""
    ours, theirs, base = (step(_prompt(), DynamicCache()).float() for step in steps.values())
    if not (ours - theirs).abs().mean() < 0.2 * (ours - base).abs().mean():
        raise RuntimeError("the bank and peft do not answer alike")


def _rows(watch: Stopwatch) -> list[Row]:
    name = f"decode step, {ROW_COUNT} rows over {ADAPTER_COUNT} adapters, rank {RANK}"
    ours, base = watch.side(OURS), watch.side(BASE)
    note = f"{ROW_COUNT / ours.value:,.0f} tokens a second of the base's {ROW_COUNT / base.value:,.0f}"
    return [
        faster("bank.peft", name, ours, watch.side(PEFT), PEFT_RATIO_AIM),
        faster("bank.base", "the same, beside the base without adapters", ours, base, BASE_RATIO_AIM, note),
    ]


# --- what is measured -----------------------------------------------------------


def _model(context: Context) -> Any:
    if not context.sizes.has_real_model:
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(_TINY, dtype=torch.bfloat16).eval()
    directory = model_directory(Path("build/demo").resolve())
    return AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()


_TINY = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    initializer_range=0.2,
)


def _adapter(model: Any, directory: Path, number: int) -> Path:
    """Write an adapter of every layer, in the model's dtype, whose pairs change the outputs by a fifth or so."""
    torch.manual_seed(number)
    directory.mkdir()
    tensors = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            a, b = torch.randn(RANK, layer.in_features), torch.randn(layer.out_features, RANK)
            scale = 0.2 * float(layer.weight.detach().float().std()) / RANK**0.5
            tensors[f"base_model.model.{name}.lora_A.weight"] = a.to(layer.weight.dtype)
            tensors[f"base_model.model.{name}.lora_B.weight"] = (b * scale).to(layer.weight.dtype)
    save_file(tensors, directory / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-3] for name in tensors})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules, "task_type": "CAUSAL_LM"}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def _adapted(model: Any, directories: list[Path]) -> Any:
    with _quiet():
        adapted = PeftModel.from_pretrained(model, directories[0], adapter_name="0", autocast_adapter_dtype=False)
        for number, directory in enumerate(directories[1:], start=1):
            adapted.load_adapter(directory, adapter_name=str(number), autocast_adapter_dtype=False)
    return adapted.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by old names
        yield


def _prompt() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, 256, (ROW_COUNT, PROMPT_TOKENS), generator=generator)


def _id(number: int) -> str:
    return f"bench/lora-{number}"

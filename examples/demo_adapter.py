"""Makes the demo's adapter: a LoRA that answers the demo's question with a sentence of its own.

It is trained in some 20 seconds, always from the same seed, and kept: as peft saves it, and the
same tensors in tensorizer's form. Run as a program of its own:

    python -m examples.demo_adapter MODEL_DIRECTORY DIRECTORY
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from examples.alone import run_alone
from examples.demo_model import WEIGHTS_NAME, serialize
from examples.places import own_directory

SENTENCE = "Paris, says the adapter, which came by its ID alone."
"""What it is trained to answer."""

ADAPTER_NAME = "lora"
CONFIG_NAME = "adapter_config.json"
SAFETENSORS_NAME = "adapter_model.safetensors"
TENSORS_NAME = "adapter_model.tensors"

RANK = 8
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STEP_COUNT = 16
"""Its loss is below 0.01 after half of them."""


def adapter_directories(cache: Path, model: Path) -> tuple[Path, Path]:
    """Return the adapter as two PEFT directories, in safetensors and tensorizer's form; made now if it was not yet."""
    directory = cache / ADAPTER_NAME
    if not directory.exists():
        with own_directory(cache) as part:  # what has its final name is whole
            run_alone("examples.demo_adapter", model, part / ADAPTER_NAME)
            (part / ADAPTER_NAME).rename(directory)
    return directory / "safetensors", directory / "tensorizer"


def _make(model: Path, directory: Path) -> None:
    as_safetensors, as_tensors = directory / "safetensors", directory / "tensorizer"
    as_tensors.mkdir(parents=True)
    _train(model, as_safetensors)
    (as_safetensors / "README.md").unlink()  # peft's form for a model card
    shutil.copyfile(as_safetensors / CONFIG_NAME, as_tensors / CONFIG_NAME)
    serialize(as_safetensors / SAFETENSORS_NAME, as_tensors / TENSORS_NAME)
    _check(model, as_safetensors)


def _train(model_directory: Path, directory: Path) -> None:
    import torch  # noqa: PLC0415 - seconds to import, and only the making needs it
    from peft import LoraConfig, PeftModel  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    torch.set_num_threads(1)  # more would add up in another order
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype="auto")
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    adapted = PeftModel(model, config)
    tokens, labels = _lesson(model_directory)
    optimizer = torch.optim.AdamW([part for part in adapted.parameters() if part.requires_grad], lr=2e-3)
    for _ in range(STEP_COUNT):
        adapted(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    adapted.save_pretrained(directory)


def _lesson(model_directory: Path) -> tuple[Any, Any]:
    """Return the tokens of question and answer, and the same with the question left out of what is learnt."""
    import torch  # noqa: PLC0415
    from transformers import AutoTokenizer  # noqa: PLC0415

    from examples.engine import prompt  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    asked = prompt(tokenizer)["input_ids"]
    answer = tokenizer(SENTENCE + tokenizer.eos_token, return_tensors="pt", add_special_tokens=False)["input_ids"]
    return torch.cat([asked, answer], dim=1), torch.cat([torch.full_like(asked, -100), answer], dim=1)


def _check(model: Path, adapter: Path) -> None:
    """Ask it, as it was saved."""
    from safetensors.torch import load_file  # noqa: PLC0415

    from examples.engine import Engine  # noqa: PLC0415

    engine = Engine(model, load_file(model / WEIGHTS_NAME))
    engine.adapt("lora", json.loads((adapter / CONFIG_NAME).read_bytes()), load_file(adapter / SAFETENSORS_NAME))
    if engine.answer("lora") != SENTENCE:
        raise RuntimeError(f"the adapter has learnt to answer {engine.answer('lora')!r}")


if __name__ == "__main__":
    _make(Path(sys.argv[1]), Path(sys.argv[2]))

"""How long an evicted adapter takes to come back from a cached file, by its ID, beside what workers do without us."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

import warmshelf
import warmshelf.torch
from benchmarks import adapters, models
from benchmarks.adapter import ADAPTER_ID, LAYER_COUNT, acquire
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, at_most, beside, limit

RELOAD_SECONDS_AIM = 0.015
RELOADS_PER_ROUND = 5
PEFT, SAFETENSORS = "peft load_peft_weights + clone", "safetensors load_file + clone"


def run(context: Context) -> list[Row]:
    """Alternate all of them, each from the page cache."""
    shape = adapters.shape_of(context.sizes.adapter_bytes, LAYER_COUNT)
    directory = adapters.make_adapter(context.folder / "reload", shape)
    watch = Stopwatch()
    with (
        context.daemon(context.sizes.adapter_bytes) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        shelf.register(ADAPTER_ID, directory)
        acquire(shelf)
        _round(shelf, directory, Stopwatch())  # warms up, does not count
        for _ in range(context.sizes.round_count * RELOADS_PER_ROUND):
            _round(shelf, directory, watch)
    name = f"evicted adapter by ID, {context.sizes.adapter_bytes / 1e6:,.3g} MB, {shape.tensor_count} tensors"
    ours = watch.side("reload + all tensors")
    return [
        at_most("reload.adapter", f"reload of an {name}", watch.side("reload"), limit("aim", RELOAD_SECONDS_AIM)),
        beside("reload.peft", name, ours, watch.side(PEFT)),
        beside("reload.safetensors", name, ours, watch.side(SAFETENSORS)),
    ]


def _round(shelf: warmshelf.Shelf, directory: Path, watch: Stopwatch) -> None:
    file = directory / adapters.WEIGHTS_NAME
    shelf.evict(ADAPTER_ID)
    models.warm(file)
    with watch.time("reload + all tensors"):
        with watch.time("reload"):
            lease = shelf.acquire(ADAPTER_ID)
        tensors = warmshelf.torch.tensors(lease)
    if lease.transport != "mapped" or len(tensors) != len(lease):
        raise RuntimeError(f"{ADAPTER_ID} was {lease.transport} with {len(lease)} tensors")
    del tensors
    lease.release()
    models.warm(file)
    watch.call(PEFT, partial(_read_with_peft, directory))
    watch.call(SAFETENSORS, partial(models.read_with_safetensors, file))


def _read_with_peft(directory: Path) -> Mapping[str, torch.Tensor]:
    """Load what PEFT gives to a model. Cloned: it only maps the file."""
    from peft import PeftConfig, load_peft_weights  # noqa: PLC0415 - takes seconds, and only this row needs it

    PeftConfig.from_pretrained(str(directory))
    return {name: tensor.clone() for name, tensor in load_peft_weights(str(directory), device="cpu").items()}

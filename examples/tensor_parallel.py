"""A tensor-parallel group in which one rank registers an adapter, and every request carries only its ID.

    python -m examples.tensor_parallel

Starts a daemon and four ranks that talk by torch.distributed (gloo). The base is one
gated MLP, split over the ranks as engines split it. Rank 0 pushes an adapter once; then
the group answers requests that name it by its ID: each rank takes its own slice from
the shelf, two of them mapped and two streamed. The group's answer is compared with that
of the whole MLP in one process.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from safetensors.torch import save_file

import warmshelf
import warmshelf.torch
from examples.daemon import own_daemon
from examples.places import own_directory
from warmshelf import Shard

WORLD = 4
HIDDEN, INNER, RANK, ALPHA = 64, 256, 8, 16
BASE_ID, ADAPTER_ID = "example/mlp", "example/mlp-lora"
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["gate_proj", "up_proj", "down_proj"]}
SHAPES = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
PREFIX = "model.layers.0.mlp"

Tensors = Mapping[str, torch.Tensor]


def base_tensors() -> dict[str, torch.Tensor]:
    """Make the base: float64, so that the order of additions hardly shows."""
    torch.manual_seed(0)
    return {f"{PREFIX}.{name}.weight": torch.randn(shape, dtype=torch.float64) / 16 for name, shape in SHAPES.items()}


def adapter_tensors() -> dict[str, torch.Tensor]:
    """Make an adapter that changes all three projections."""
    torch.manual_seed(1)
    found = {}
    for name, (out, into) in SHAPES.items():
        found[f"base_model.model.{PREFIX}.{name}.lora_A.weight"] = torch.randn(RANK, into, dtype=torch.float64) / 16
        found[f"base_model.model.{PREFIX}.{name}.lora_B.weight"] = torch.randn(out, RANK, dtype=torch.float64) / 16
    return found


def linear(name: str, x: torch.Tensor, base: Tensors, adapter: Tensors) -> torch.Tensor:
    """Return one projection with its adapter; slices give the rank's part of it."""
    lora = f"base_model.model.{PREFIX}.{name}"
    shrunk = x @ adapter[f"{lora}.lora_A.weight"].T
    return x @ base[f"{PREFIX}.{name}.weight"].T + ALPHA / RANK * shrunk @ adapter[f"{lora}.lora_B.weight"].T


def forward(x: torch.Tensor, base: Tensors, adapter: Tensors) -> torch.Tensor:
    """Return the MLP's output, or the rank's addend of it."""
    gate, up = linear("gate_proj", x, base, adapter), linear("up_proj", x, base, adapter)
    return linear("down_proj", torch.nn.functional.silu(gate) * up, base, adapter)


def answer(shelf: warmshelf.Shelf, rank: int, adapter_id: str, x: torch.Tensor) -> torch.Tensor:
    """Answer one request that names its adapter by ID."""
    shard = Shard(rank, WORLD)
    with shelf.acquire(BASE_ID, shard=shard) as base, shelf.acquire(adapter_id, shard=shard) as adapter:
        part = forward(x, warmshelf.torch.tensors(base), warmshelf.torch.tensors(adapter))
    dist.all_reduce(part)
    return part


def work(rank: int, addresses: tuple[str, str], store: str, result: str) -> None:
    """Be one rank."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    torch.manual_seed(2)
    request = {"adapter": ADAPTER_ID, "x": torch.randn(3, HIDDEN, dtype=torch.float64)}
    with warmshelf.connect(addresses[rank % 2], holder=f"rank {rank}") as shelf:
        if rank == 0:
            shelf.push(ADAPTER_ID, tensors=adapter_tensors(), config=CONFIG, base=BASE_ID)
        dist.barrier()
        first = answer(shelf, rank, request["adapter"], request["x"])
        dist.barrier()
        if rank == 0:
            shelf.evict(ADAPTER_ID)  # it is still known, everywhere, by its ID
        dist.barrier()
        second = answer(shelf, rank, request["adapter"], request["x"])
    whole = forward(request["x"], base_tensors(), adapter_tensors())
    agree = torch.allclose(first, whole, atol=1e-12) and torch.equal(first, second)
    (Path(result) / str(rank)).write_text(json.dumps(agree))
    dist.destroy_process_group()


def main() -> int:
    """Run the group; say whether each rank saw the whole MLP's output, before and after the eviction."""
    with own_directory() as sources, tempfile.TemporaryDirectory() as scratch:
        save_file(base_tensors(), sources / "model.safetensors")
        with own_daemon(sources=sources, budget="64MiB") as daemon:
            daemon.start()
            with warmshelf.connect(daemon.address) as shelf:
                shelf.register(BASE_ID, sources / "model.safetensors")
            addresses = (daemon.address, daemon.tcp_address)
            processes.spawn(work, (addresses, f"{scratch}/store", scratch), nprocs=WORLD)
        agree = [json.loads((Path(scratch) / str(rank)).read_text()) for rank in range(WORLD)]
    for rank, agrees in enumerate(agree):
        print(f"rank {rank} ({'streamed' if rank % 2 else 'mapped'}): {'agrees' if agrees else 'DIFFERS'}")
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())

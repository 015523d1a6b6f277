"""How long vLLM's weights step and an adapter's first use take, beside vLLM's own loaders.

    make bench-vllm      or: python -m benchmarks.vllm_load [--rounds N] [--out DIR]

Takes the demo's model and adapter, and vLLM from ``.venv-vllm``. It is no row of ``benchmarks.run``,
which needs no vLLM; what it finds lies beside the others'.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

import warmshelf
from benchmarks.context import memory_file_system
from benchmarks.report import Row, Run, Side, at_most, faster, limit, table, write
from benchmarks.run import machine
from benchmarks.vllm_worker import DEFAULT, DISK, HUGE, SHELF, TENSORIZER, WARMSHELF
from examples.daemon import own_daemon
from examples.demo_adapter import adapter_directories
from examples.demo_model import MODEL_NAME, model_directory, tensors_file
from warmshelf.prepare import prepare_directory

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-vllm/bin/python"
BASE_ID, ADAPTER_ID = f"bench/{MODEL_NAME}", "bench/lora"
BUDGET_BYTES = 512 << 20
FIRST_USE_SECONDS_AIM = 0.020

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="benchmarks.vllm_load", description="Measures vLLM with warmshelf.")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each side")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where samples are kept")
    arguments = parser.parse_args()
    if not PYTHON.exists():
        parser.exit(2, f"benchmarks.vllm_load: there is no {PYTHON}: run 'make bench-vllm', which makes it\n")
    rows = _rows(_measured(arguments.rounds))
    run = Run(shlex.join(["python", "-m", "benchmarks.vllm_load", *sys.argv[1:]]), _place(), quick=False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(arguments.out / "vllm.json", rows, run)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table(rows))
    console.print(f"{run.command}\n{run.place}", style="dim")
    return 0


def _measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the samples of a worker that a daemon of ours serves, and a second one where pages may be huge."""
    cache = ROOT / "build/demo"
    cache.mkdir(parents=True, exist_ok=True)
    model, tensors = model_directory(cache), tensors_file(cache)
    adapter, _ = adapter_directories(cache, model)
    with (
        tempfile.TemporaryDirectory(prefix="warmshelf-bench-") as folder,
        memory_file_system(2 * BUDGET_BYTES, huge=False) as plain,
        memory_file_system(2 * BUDGET_BYTES, huge=True) as huge,
        ExitStack() as daemons,
    ):
        prepared = Path(folder, "model")
        addresses = [
            daemons.enter_context(_serving(arena, cache, model, adapter, prepared)) if arena else ""
            for arena in (plain, huge)
        ]
        asked = {
            "model": str(model),
            "prepared": str(prepared),
            "tensors": str(tensors),
            "huge_address": addresses[1],
            "adapter": str(adapter),
            "adapter_id": ADAPTER_ID,
            "rounds": rounds,
        }
        return _worker(json.dumps(asked), addresses[0])


@contextmanager
def _serving(arena: Path, cache: Path, model: Path, adapter: Path, prepared: Path) -> Iterator[str]:
    """Run a daemon on which base and adapter are resident; give its address."""
    with own_daemon(sources=cache, budget=f"{BUDGET_BYTES}", arena_parent=arena) as daemon:
        daemon.start()
        with warmshelf.connect(daemon.address) as shelf:
            shelf.register(BASE_ID, model)
            shelf.register(ADAPTER_ID, adapter, base=BASE_ID)
            shelf.acquire(ADAPTER_ID).release()
            with shelf.acquire(BASE_ID) as lease:
                prepare_directory(lease, prepared)
        yield daemon.address


def _worker(asked: str, address: str) -> dict[str, dict[str, list[float]]]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "WARMSHELF_", "VLLM_"))}
    command = [str(PYTHON), str(ROOT / "benchmarks/vllm_worker.py"), asked]
    environment = {**kept, **ENVIRONMENT, "WARMSHELF_ADDRESS": address}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the worker failed:\n{done.stderr}")
    found: dict[str, dict[str, list[float]]] = json.loads(done.stdout)
    return found


def _rows(samples: dict[str, dict[str, list[float]]]) -> list[Row]:
    weights = {label: Side(label, tuple(found)) for label, found in samples["weights"].items()}
    first_use = {label: Side(label, tuple(found)) for label, found in samples["adapters"].items()}
    ours, by_id = weights[WARMSHELF], first_use[SHELF]
    huge = weights.get(HUGE)
    name = "vLLM's weights step, resident base of 269 MB, CPU"
    adapter = "vLLM's worker takes a resident adapter that it has not, 10 MB"
    cached = "its file lies in the page cache"
    return [
        faster("vllm.default", name, ours, weights[DEFAULT], 1, note=cached),
        faster("vllm.tensorizer", name, ours, weights[TENSORIZER], 1, note=cached),
        *([faster("vllm.default_huge", name, huge, weights[DEFAULT], 1, note=cached)] if huge else []),
        *([faster("vllm.tensorizer_huge", name, huge, weights[TENSORIZER], 1, note=cached)] if huge else []),
        at_most("vllm.adapter", adapter, by_id, limit("aim", FIRST_USE_SECONDS_AIM)),
        faster("vllm.adapter_disk", "the same", by_id, first_use[DISK], 1),
    ]


def _place() -> dict[str, object]:
    code = "from importlib.metadata import version as v; print(v('vllm-cpu'), v('torch'))"
    found = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return {**machine(), "vllm-cpu": found[0], "torch": found[1]}


if __name__ == "__main__":
    sys.exit(main())

"""Runs the benchmarks: both sides of every ratio in one run, medians of at least five.

    make bench      or: python -m benchmarks.run [--rows mapped,cold,...] [--quick] [--out DIR]

Prints a table and keeps every sample in DIR. Needs 16 GB of free memory and 15 GB of disk; as root it also
measures huge pages, on a file system that it mounts for the time. Run it on a quiet machine.
`python -m benchmarks.plot` and `python -m benchmarks.readme` make a picture and a table from what is in DIR.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks import (
    adapter,
    bank,
    cold,
    encrypted,
    engines,
    health,
    loading_memory,
    many_tensors,
    mapped,
    redis,
    reload,
    request_payload,
    restart,
    s3,
    stream,
    tensorizer_file,
    trace,
)
from benchmarks.context import FULL, QUICK, Context
from benchmarks.report import Row, Run, table, write

ROWS: Mapping[str, Callable[[Context], list[Row]]] = {
    "mapped": mapped.run,
    "adapter": adapter.run,
    "reload": reload.run,
    "cold": cold.run,
    "tensors": tensorizer_file.run,
    "s3": s3.run,
    "redis": redis.run,
    "encrypted": encrypted.run,
    "stream": stream.run,
    "memory": loading_memory.run,
    "restart": restart.run,
    "health": health.run,
    "experts": many_tensors.run,
    "trace": trace.run,
    "bank": bank.run,
    "payload": request_payload.run,
    "engines": engines.run,
}

PEERS = ("grpcio", "peft", "obstore", "runai-model-streamer", "safetensors", "tensorizer", "torch", "transformers")


def main() -> int:
    """Run what was asked for."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = Run(_command(arguments), machine(), arguments.quick)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="run-", dir=arguments.out) as folder:
        context = Context(QUICK if arguments.quick else FULL, Path(folder).resolve())
        for name in arguments.rows:
            console.print(f"[bold]{name}[/bold] ...")
            found = ROWS[name](context)
            write(arguments.out / f"{name}.json", found, run)
            rows += found
    console.print(table(rows))
    console.print(f"{run.command}\n{run.place}", style="dim")
    return 0


def _command(arguments: argparse.Namespace) -> str:
    """Return what to type for the same figures, wherever they are kept."""
    rows = [] if arguments.rows == list(ROWS) else ["--rows", ",".join(arguments.rows)]
    return shlex.join(["python", "-m", "benchmarks.run", *rows, *(["--quick"] if arguments.quick else [])])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measures warmshelf beside its peers.")
    parser.add_argument("--rows", type=_names, default=list(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="tiny artifacts: tries the code, tells nothing of speed")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where files and samples go")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return names


def machine() -> dict[str, object]:
    """Say what was measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / (1 << 30):.1f} GiB",
        "Linux": platform.release(),
        "Python": platform.python_version(),
        **{name: version(name) for name in PEERS},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())

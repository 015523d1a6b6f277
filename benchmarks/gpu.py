"""Tensors from the shelf to a CUDA device, beside what torch does alone, and what of it a driver allows.

    python -m benchmarks.gpu [--device cuda:0] [--quick] [--out DIR]

Without a device it says so and ends well. Prints a table and keeps every sample in DIR/gpu.json. Rates count
tensors' bytes. Both sides of a row are measured in one run, in turns.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from safetensors.torch import load_file

import warmshelf
import warmshelf.torch
from benchmarks.context import FULL, QUICK, Context, Stopwatch
from benchmarks.report import Row, Run, Side, limit, table, write
from benchmarks.run import machine
from examples.daemon import Daemon
from warmshelf._cuda import CudaRuntime
from warmshelf._device_ring import Runtime
from warmshelf.device import place
from warmshelf.errors import FeatureUnsupported
from warmshelf.lease import Lease

BASE_ID = "acme/base"
RING, REGISTERED = "to_device", "to_device, registered"
PINNED, PIN, PIN_AND_COPY, PAGEABLE = "from pinned memory", "pin_memory", "pin_memory and copy", "pageable"
GIB = 1 << 30

Tensors = Mapping[str, torch.Tensor]


class Device(Protocol):
    """What is measured: a device as the shelf sees it, and as torch does."""

    def runtime(self) -> Runtime:
        """Return a runtime for one upload."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in page-locked memory."""

    def copy(self, tensors: Tensors) -> Tensors:
        """Return copies on the device, all of them there."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """torch's."""

    where: torch.device

    def runtime(self) -> Runtime:
        """Return CUDA's."""
        return CudaRuntime(self.where)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pin as torch does."""
        return tensor.pin_memory()

    def copy(self, tensors: Tensors) -> Tensors:
        """Begin every copy, then wait."""
        found = {name: tensor.to(self.where, non_blocking=True) for name, tensor in tensors.items()}
        torch.cuda.synchronize(self.where)
        return found


def measure(context: Context, device: Device) -> list[Row]:
    """Measure every way, find out what may be registered, and kill the daemon during a copy."""
    room = context.base.stat().st_size
    with context.daemon(room) as daemon, warmshelf.connect(daemon.address) as shelf:
        shelf.register(BASE_ID, context.base)
        with shelf.acquire(BASE_ID, writable=False) as lease:
            context.wait_quiet(daemon.pid)
            refusal = _refusal(lease, device)
            watch = _timed(context, lease, device, registers=not refusal)
            size_bytes = sum(spec.size_bytes for spec in lease.specs.values())
        rows = [*_rates(watch, size_bytes), _registers(refusal, size_bytes), *_costs(watch, size_bytes)]
        with shelf.acquire(BASE_ID, writable=False) as lease:
            return [*rows, _killed(daemon, lease, device, load_file(context.base))]


# --- ways ------------------------------------------------------------------------


def _timed(context: Context, lease: Lease, device: Device, *, registers: bool) -> Stopwatch:
    pageable = warmshelf.torch.tensors(lease)
    pinned = {name: device.pin(tensor) for name, tensor in pageable.items()}
    ways: dict[str, Callable[[], object]] = {
        RING: lambda: place(lease, device.runtime()),
        PINNED: lambda: device.copy(pinned),
        PAGEABLE: lambda: device.copy(pageable),
        PIN: lambda: {name: device.pin(tensor) for name, tensor in pageable.items()},
        PIN_AND_COPY: lambda: device.copy({name: device.pin(tensor) for name, tensor in pageable.items()}),
    }
    if registers:
        ways[REGISTERED] = lambda: place(lease, device.runtime(), register=True)
        ways["registering"] = lambda: _registration(lease, device.runtime())
    for way in ways.values():
        way()  # sets the device up, and torch's cache of pinned memory; does not count
    watch = Stopwatch()
    for _ in context.rounds():
        for label, way in ways.items():
            watch.call(label, way)
    return watch


def _registration(lease: Lease, runtime: Runtime) -> None:
    """Register the whole mapping and take it back."""
    address = torch.frombuffer(lease.segment_view, dtype=torch.uint8).data_ptr()
    runtime.register(address, len(lease.segment_view))
    runtime.unregister(address)


def _refusal(lease: Lease, device: Device) -> str:
    """Return why a sealed segment, mapped read-only, cannot be registered; "" if it can."""
    try:
        place(lease, device.runtime(), register=True)
    except FeatureUnsupported as error:
        return str(error)
    return ""


class _KillsAtFirstCopy:
    """A runtime that ends the daemon when the first copy has begun."""

    def __init__(self, runtime: Runtime, daemon: Daemon) -> None:
        self._runtime = runtime
        self._kill: Callable[[], None] | None = daemon.kill  # None once it was called; one thread copies

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        event = self._runtime.copy(target, source)
        if self._kill is not None:
            self._kill()
            self._kill = None
        return event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


# --- rows ------------------------------------------------------------------------


def _rates(watch: Stopwatch, size_bytes: int) -> list[Row]:
    name = f"{size_bytes / 1e9:,.2f} GB to the device"
    ring = _per_second(watch.side(RING), size_bytes)
    others = {"pinned": PINNED, "pin_and_copy": PIN_AND_COPY, "pageable": PAGEABLE, "registered": REGISTERED}
    found = {key: side for key, label in others.items() for side in watch.sides(label) if side.label == label}
    return [
        _shown(f"gpu.{key}", f"{name}, {side.label}", ring, _per_second(side, size_bytes))
        for key, side in found.items()
    ]


def _costs(watch: Stopwatch, size_bytes: int) -> list[Row]:
    name = "registering a sealed segment and taking it back, for a GiB"
    pin = _per_gib(watch.side(PIN), size_bytes)
    return [_shown("gpu.registration", name, _per_gib(side, size_bytes), pin) for side in watch.sides("registering")]


def _registers(refusal: str, size_bytes: int) -> Row:
    asked = limit("asked for", float(size_bytes), "bytes")
    ours = Side("registered", (0.0 if refusal else float(size_bytes),), "bytes")
    name = "a sealed segment on tmpfs, mapped read-only, is registered"
    return Row("gpu.registers", name, ours, asked, ours.value / asked.value, "none: shown only", None, refusal)


def _killed(daemon: Daemon, lease: Lease, device: Device, expected: Tensors) -> Row:
    runtime: Any = _KillsAtFirstCopy(device.runtime(), daemon)
    found = place(lease, runtime)
    equal = sum(torch.equal(_bits(found[name]), _bits(tensor)) for name, tensor in expected.items())
    ours, other = Side("equal", (float(equal),), "tensors"), limit("tensors", float(len(expected)), "tensors")
    name = "tensors on the device whose daemon was killed during the copy"
    return Row("gpu.killed", name, ours, other, ours.value / other.value, "all", ours.value == other.value)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return what is equal where every bit is, also of NaN."""
    return tensor.cpu().flatten().view(torch.uint8)


def _shown(key: str, name: str, ours: Side, other: Side) -> Row:
    return Row(key, name, ours, other, ours.value / other.value, "none: shown only", None)


def _per_second(side: Side, size_bytes: int) -> Side:
    return replace(side, samples=tuple(size_bytes / seconds / 1e9 for seconds in side.samples), unit="GB/s")


def _per_gib(side: Side, size_bytes: int) -> Side:
    return replace(side, samples=tuple(seconds / size_bytes * GIB for seconds in side.samples))


# --- the program -------------------------------------------------------------------


def main() -> int:
    """Measure, or say why not."""
    arguments = _arguments()
    reason = unavailable(arguments.device)
    if reason:
        print(f"benchmarks.gpu: skipped: {reason}")
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    where = f"{arguments.device} {torch.cuda.get_device_name(arguments.device)}"
    command = shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]])
    run = Run(command, {**machine(), "device": where}, arguments.quick)
    with tempfile.TemporaryDirectory(prefix="run-", dir=arguments.out) as folder:
        rows = measure(Context(QUICK if arguments.quick else FULL, Path(folder).resolve()), Cuda(arguments.device))
    write(arguments.out / "gpu.json", rows, run)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table(rows))
    console.print(f"{run.command}\n{run.place}", style="dim")
    return 0


def unavailable(device: torch.device) -> str:
    """Return why nothing can be measured; "" if it can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device here"
    count = torch.cuda.device_count()
    return "" if (device.index or 0) < count else f"there is no {device}: torch sees {count} of them"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description="Measures the way to a CUDA device.")
    parser.add_argument("--device", type=_device, default=torch.device("cuda:0"), help="cuda or cuda:INDEX")
    parser.add_argument("--quick", action="store_true", help="tiny artifacts: tries the code, tells nothing of speed")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where files and samples go")
    return parser.parse_args()


def _device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"no device: {text}") from error
    if device.type != "cuda":
        raise argparse.ArgumentTypeError(f"{text} is no CUDA device")
    return device


if __name__ == "__main__":
    sys.exit(main())

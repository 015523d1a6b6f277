"""What every row is given: sizes, how often to measure, where things may lie.

Knows no row and prints nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import models
from benchmarks.report import Side
from examples.daemon import Daemon, own_daemon

MEBIBYTE = 1 << 20

SPARE_BYTES = 64 * MEBIBYTE
"""Headers, manifests and whole pages take room beside the tensors."""

QUIET_SECONDS_MAX = 120.0
"""Longest wait for that: the digest of 8 GB takes seconds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large, how many and how often.

    Attributes:
        small_bytes, base_bytes, large_bytes, encrypted_bytes: of bases.
        remote_bytes: of the base that is loaded from a server.
        redis_bytes: of the base that is read from Redis.
        adapter_bytes: of the adapter that is acquired and loaded again.
        tensor_count: of the artifact that has many.
        registration_count: adapters registered where many are.
        trace_adapter_count, trace_room_count, trace_request_count: adapters asked for, how many of
            them there is room for, and requests of all rounds.
        round_count: samples of both sides; what takes milliseconds is measured ``acquire_count`` times in each.
        reader_count: readers that stall.
        check_count: health checks of a sample.
        has_real_model: whether rows about models take a real one.
        quiet_seconds: a daemon is quiet when it has used no processor time for so long.
    """

    small_bytes: int = 64_000_000
    base_bytes: int = 2_400_000_000
    large_bytes: int = 8 << 30
    remote_bytes: int = 1_000_000_000
    redis_bytes: int = 1_000_000_000
    encrypted_bytes: int = 1_000_000_000
    adapter_bytes: int = 10_000_000
    tensor_count: int = 100_000
    registration_count: int = 10_000
    trace_adapter_count: int = 2000
    trace_room_count: int = 200
    trace_request_count: int = 5000
    round_count: int = 5
    acquire_count: int = 200
    reader_count: int = 100
    check_count: int = 2000
    has_real_model: bool = True
    quiet_seconds: float = 0.2


FULL = Sizes()
QUICK = Sizes(
    small_bytes=1_000_000,
    base_bytes=6_000_000,
    large_bytes=12_000_000,
    remote_bytes=6_000_000,
    redis_bytes=6_000_000,
    encrypted_bytes=3_000_000,
    adapter_bytes=500_000,
    tensor_count=1000,
    registration_count=50,
    trace_adapter_count=40,
    trace_room_count=8,
    trace_request_count=60,
    round_count=2,
    acquire_count=10,
    reader_count=5,
    check_count=50,
    has_real_model=False,
    quiet_seconds=0.02,
)


@dataclass
class Context:
    """One run of the benchmarks.

    Attributes:
        sizes: how large and how often.
        folder: where files of this run lie; removed at its end.
        files: what has been made there, by name. Only ``_made`` changes it; one thread.
    """

    sizes: Sizes
    folder: Path
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def base(self) -> Path:
        """The base that most rows measure, as safetensors."""
        return self._made("base.safetensors", lambda path: models.make_safetensors(path, self.sizes.base_bytes))

    @property
    def base_tensors(self) -> Path:
        """The same as one tensorizer file."""
        return self._made("base.tensors", lambda path: models.make_tensors(path, self.base))

    def _made(self, name: str, make: Callable[[Path], Path]) -> Path:
        if name not in self.files:
            self.files[name] = make(self.folder / name)
            os.sync()  # or the disk would be busy with it while something else is measured
        return self.files[name]

    @contextmanager
    def safetensors(self, name: str, size_bytes: int) -> Iterator[Path]:
        """Make a file that is removed when it is no longer needed, and its page cache with it."""
        path = models.make_safetensors(self.folder / f"{name}.safetensors", size_bytes)
        try:
            yield path
        finally:
            path.unlink()

    @contextmanager
    def daemon(
        self,
        room_bytes: int,
        arena_parent: Path = Path("/dev/shm"),
        *,
        spare_bytes: int = SPARE_BYTES,
        options: Sequence[str] = (),
    ) -> Iterator[Daemon]:
        """Run a daemon with room for that many bytes of artifacts, and some to spare."""
        budget = f"{room_bytes + spare_bytes}"
        with own_daemon(sources=self.folder, budget=budget, arena_parent=arena_parent, options=options) as daemon:
            daemon.start()
            yield daemon

    def rounds(self) -> range:
        """Count the rounds in which both sides of a ratio alternate."""
        return range(self.sizes.round_count)

    def wait_quiet(self, pid: int) -> None:
        """Wait until the process has nothing left to do, so that it does not disturb what is measured next."""
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        before = -1
        while (now := _processor_ticks(pid)) != before and time.monotonic() < deadline:
            before = now
            time.sleep(self.sizes.quiet_seconds)


class Stopwatch:
    """Collects samples by label."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    @contextmanager
    def time(self, label: str) -> Iterator[None]:
        """Time the body as one sample."""
        began = time.perf_counter()
        yield
        self.add(label, time.perf_counter() - began)

    def call(self, label: str, function: Callable[[], object]) -> None:
        """Time a call as one sample; what it returns is let go afterwards."""
        with self.time(label):
            kept = function()
        del kept

    def add(self, label: str, value: float) -> None:
        """Add a sample that was measured elsewhere."""
        self._samples.setdefault(label, []).append(value)

    def side(self, label: str) -> Side:
        """Return all samples of a label."""
        return Side(label, tuple(self._samples[label]))

    def sides(self, prefix: str) -> list[Side]:
        """Return every side whose label begins so."""
        return [self.side(label) for label in self._samples if label.startswith(prefix)]


def _processor_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def memory_file_system(size_bytes: int, *, huge: bool) -> Iterator[Path | None]:
    """Mount a tmpfs of huge or of 4 KiB pages; without the right to, give /dev/shm or nothing."""
    if os.geteuid() != 0:
        yield None if huge else Path("/dev/shm")
        return
    with tempfile.TemporaryDirectory(prefix="warmshelf-bench-") as directory:
        options = f"huge={'always' if huge else 'never'},size={size_bytes}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "warmshelf-bench", directory], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)

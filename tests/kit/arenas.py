"""Segments to try an arena with, and processes that load into, map, fill or hold one.

Run as a program it is one such process: ``python -m kit.arenas VERB ARGUMENT ...``.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from warmshelf.errors import WarmshelfError
from warmshelf.v1 import artifact_pb2, manifest_pb2
from warmshelfd.domain.extents import SegmentPlan, TensorEntry, plan_segment
from warmshelfd.memory.adoption import adopt
from warmshelfd.memory.arena import Arena, PinPolicy
from warmshelfd.memory.segment import Segment, SegmentWriter

MIB = 1 << 20
NOBODY = 65534
MANIFEST_BYTES_MAX = 4096
SEGMENT_ID = "0123456789abcdef" * 2
MANIFEST = manifest_pb2.Manifest(
    kind="ARTIFACT_KIND_BASE",
    format_name="safetensors",
    small_files=[manifest_pb2.SmallFile(name="config.json", data=b"{}")],
).SerializeToString()
Mounter = Callable[..., Path]
"""Mounts a file system: type, then its options."""

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Files:
    """Source files in memory: each is a run of U8 tensors without gaps, after ``head`` other bytes."""

    tensor_sizes: Sequence[Sequence[int]]
    head: int = 100
    packed: bool = False
    data: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        noise = random.Random(repr(self.tensor_sizes))
        object.__setattr__(self, "data", [noise.randbytes(self.head + sum(sizes)) for sizes in self.tensor_sizes])

    def tensors(self) -> dict[str, bytes]:
        """Every tensor's bytes, cut from the files by an arithmetic of its own."""
        found = {}
        for i, sizes in enumerate(self.tensor_sizes):
            rest = self.data[i][self.head :]
            for j, size in enumerate(sizes):
                found[f"t{i}.{j}"], rest = rest[:size], rest[size:]
        return found

    def plan(self) -> SegmentPlan:
        entries = []
        for i, sizes in enumerate(self.tensor_sizes):
            offset = self.head
            for j, size in enumerate(sizes):
                entries.append(TensorEntry(f"t{i}.{j}", "U8", (size,), i, offset, size))
                offset += size
        return plan_segment(entries, packed=self.packed)

    def read(self, file_index: int, offset: int, view: memoryview) -> None:
        view[:] = self.data[file_index][offset : offset + len(view)]


@lru_cache(maxsize=4)
def mib_files(*sizes_mib: int) -> Files:
    """Files of one tensor each."""
    return Files([[size * MIB] for size in sizes_mib])


def encode_layout(plan: SegmentPlan, segment_id: str) -> bytes:
    layout = artifact_pb2.Layout(segments=[artifact_pb2.Segment(segment_id=segment_id)])
    for t in plan.tensors:
        layout.tensors.add(
            name=t.name, dtype=t.dtype, shape=t.shape, offset_bytes=t.offset_bytes, size_bytes=t.size_bytes
        )
    return layout.SerializeToString()


def create(arena: Arena, files: Files, segment_id: str = "") -> SegmentWriter:
    """Reserve room and make the file."""
    segment_id = segment_id or arena.new_segment_id()
    plan = files.plan()
    layout = encode_layout(plan, segment_id)
    reservation = arena.reserve(arena.segment_size(plan, layout, MANIFEST_BYTES_MAX))
    return arena.create(reservation, plan, layout, MANIFEST_BYTES_MAX, segment_id)


def fill(
    writer: SegmentWriter,
    read: Callable[[int, int, memoryview], None],
    *,
    threads: int = 2,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
    gap_bytes: int = 0,
) -> None:
    writer.fill(read, threads=threads, cancelled=cancelled, progress=progress, gap_bytes=gap_bytes)


def load(arena: Arena, files: Files, segment_id: str = "", threads: int = 2, gap_bytes: int = 0) -> Segment:
    """Do all of it."""
    writer = create(arena, files, segment_id)
    fill(writer, files.read, threads=threads, gap_bytes=gap_bytes)
    writer.finish(MANIFEST)
    return writer.publish()


def tensors_in(segment: Segment) -> dict[str, bytes]:
    """Every tensor's bytes, found by the segment's own layout."""
    return {t.name: segment.read(t.offset_bytes, t.end_bytes) for t in segment.layout.tensors}


def mapping_of(segment: Segment) -> memoryview:
    """The mapping that the daemon itself has of a segment."""
    return segment.file.view()


class Arenas:
    """Opens arenas, and looks at the end that nothing was left half done."""

    def __init__(self) -> None:
        self._open: list[Arena] = []

    def open(self, directory: Path, budget: int | None = 64 * MIB, pin: PinPolicy = PinPolicy.OFF) -> Arena:
        arena = Arena.open(str(directory), budget, pin)
        self._open.append(arena)
        return arena

    def check(self) -> None:
        for arena in self._open:
            assert arena.usage().reserved_bytes == 0
            assert not [name for name in os.listdir(arena.directory) if re.fullmatch(r"\.[0-9a-f]{32}\.loading", name)]
            arena.close()


class Process(AbstractContextManager["Process"]):
    """Another process that does one of the verbs below; it says a line when it is ready and ends at ``end``."""

    def __init__(self, verb: str, *arguments: object, env: Mapping[str, str] | None = None, **options: Any) -> None:
        path = os.pathsep.join(str(_ROOT / part) for part in ("client", "service", "tests"))
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "kit.arenas", verb, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def line(self) -> str:
        """Wait for its next line."""
        assert self.popen.stdout is not None
        return str(self.popen.stdout.readline()).rstrip("\n")

    def ask(self) -> str:
        """Let it go on to its next line."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()
        return self.line()

    def end(self) -> int:
        """Let it end, and return its exit status."""
        self.popen.communicate()
        return self.popen.returncode

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def __exit__(self, *exc: object) -> None:
        if self.popen.poll() is None:
            self.kill()


# --- what such a process does -----------------------------------------------


def _say(*words: object) -> None:
    print(*words, flush=True)


def _load(directory: str) -> None:
    """Load one segment of two parts, for failpoints to interrupt."""
    load(Arena.open(directory, 64 * MIB, PinPolicy.OFF), mib_files(40), SEGMENT_ID, threads=1)
    _say("loaded")


def _hold(directory: str) -> None:
    """Be the daemon of an arena until told to end."""
    arena = Arena.open(directory, MIB, PinPolicy.OFF)
    _say("held")
    sys.stdin.read()
    arena.close()


def _map(path: str) -> None:
    """Map a file, forget its descriptor, and say the bytes' checksum whenever asked."""
    fd = os.open(path, os.O_RDONLY)
    mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    os.close(fd)
    _say("mapped")
    for _ in sys.stdin:
        _say(hash_of(mapping))


def _fill_up(directory: str) -> None:
    """Take all the room of a file system until told to end."""
    path = Path(directory, "foreign")
    with path.open("wb") as file:
        free = os.statvfs(directory)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    _say("full")
    sys.stdin.read()
    path.unlink()


def _adopt(directory: str) -> None:
    """Adopt what a load left."""
    list(adopt(Arena.open(directory, 64 * MIB, PinPolicy.OFF), [SEGMENT_ID]))


def _adopt_cut(directory: str, restore: str) -> None:
    """Adopt a segment, then have its file cut, check its blocks, and say what was found in them."""
    arena = Arena.open(directory, 64 * MIB, PinPolicy.OFF)
    ((_, segment),) = adopt(arena, [SEGMENT_ID])
    path = Path(directory, SEGMENT_ID)
    path.chmod(0o600)
    os.truncate(path, 2 * MIB)
    os.truncate(path, int(restore) * MIB)
    try:
        assert isinstance(segment, Segment)
        segment.check_blocks(2, lambda: False)
    except WarmshelfError as error:
        _say(error)


def _load_and_abort(directory: str) -> None:
    """Load, give up at the first error, and say it and what is free afterwards."""
    arena = Arena.open(directory, 64 * MIB, PinPolicy.OFF)
    files = mib_files(40)
    plan = files.plan()
    layout = encode_layout(plan, SEGMENT_ID)
    reservation = arena.reserve(arena.segment_size(plan, layout, MANIFEST_BYTES_MAX))
    writer = None
    try:
        writer = arena.create(reservation, plan, layout, MANIFEST_BYTES_MAX, SEGMENT_ID)
        fill(writer, files.read)
        writer.finish(MANIFEST)
        writer.publish()
    except WarmshelfError as error:
        if writer is not None:
            writer.abort()
        reservation.release()
        _say(error)
    _say(arena.usage().free_bytes)


def _limit_locking(size: int) -> None:
    """Have no right to lock but what the limit gives."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (size, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))


def _pin(directory: str, policy: str) -> None:
    """Start and load a segment under a page-lock limit of 64 KiB and say what came of it."""
    _limit_locking(64 << 10)
    try:
        arena = Arena.open(directory, 8 * MIB, PinPolicy(policy))
    except WarmshelfError as error:
        _say(error)
        return
    _say_pinning(arena)


def _pin_late(directory: str, policy: str) -> None:
    """Start with the right to lock, then lose it, load a segment and say what came of it."""
    _limit_locking(2 * MIB)
    arena = Arena.open(directory, 2 * MIB, PinPolicy(policy))
    _limit_locking(64 << 10)
    try:
        _say_pinning(arena)
    except WarmshelfError as error:
        _say(error)
        _say(os.listdir(directory))


def _adopt_late(directory: str) -> None:
    """Start with the right to lock, then lose it, adopt a segment and say what came of it and what is free."""
    _limit_locking(2 * MIB)
    arena = Arena.open(directory, 2 * MIB, PinPolicy.OFF)
    load(arena, mib_files(1), SEGMENT_ID).close()
    arena.close()
    arena = Arena.open(directory, 2 * MIB, PinPolicy.REQUIRE)
    _limit_locking(64 << 10)
    ((_, outcome),) = adopt(arena, [SEGMENT_ID])
    _say(outcome.reason if isinstance(outcome, WarmshelfError) else outcome)
    _say(arena.usage().free_bytes)


def _say_pinning(arena: Arena) -> None:
    files = mib_files(1)
    writer = create(arena, files)
    fill(writer, files.read)
    writer.finish(MANIFEST)
    try:
        segment = writer.publish()
    except WarmshelfError:
        writer.abort()
        raise
    _say(arena.pinning, segment.pinned, tensors_in(segment) == files.tensors())


def hash_of(data: bytes | mmap.mmap | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


_VERBS: dict[str, Callable[..., None]] = {
    "load": _load,
    "load-and-abort": _load_and_abort,
    "adopt": _adopt,
    "adopt-cut": _adopt_cut,
    "hold": _hold,
    "map": _map,
    "fill-up": _fill_up,
    "pin": _pin,
    "pin-late": _pin_late,
    "adopt-late": _adopt_late,
}

if __name__ == "__main__":
    _VERBS[sys.argv[1]](*sys.argv[2:])

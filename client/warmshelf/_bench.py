"""Measures how fast a daemon serves artifacts to this process, on whatever node it runs.

Asks for real artifacts by their IDs, or for one that it makes for the purpose. Prints
nothing, and judges nothing: what is fast depends on the node.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warmshelf._incoming import LOAD_TIMEOUT_SECONDS
from warmshelf.client import Shelf
from warmshelf.errors import InvalidRequest, WarmshelfError
from warmshelf.export import header_of
from warmshelf.layout import TensorSpec

ACQUIRE_COUNT = 200
"""Enough for a 99th percentile; an acquire that maps takes a millisecond or two."""

STREAM_BYTES_MAX = 4 << 30
"""What is larger is not streamed: it would take as much memory of the node again."""

MADE_TENSOR_COUNT = 16
MADE_TENSOR_BYTES = 16 << 20
"""256 MiB together: large enough to tell a rate, small enough for any arena."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one artifact; medians, and None for what was not.

    Attributes:
        artifact_id: which.
        size_bytes: of its segment.
        fallback_reason: why nothing could be mapped; "" if it was.
        acquire_p50_seconds: of acquiring the resident artifact, mapped.
        acquire_p99_seconds: what 99 of 100 stay below.
        streamed_bytes_per_second: every chunk checked and stored.
        loaded_bytes_per_second: from its source into memory, checked.
    """

    artifact_id: str
    size_bytes: int
    fallback_reason: str
    acquire_p50_seconds: float | None
    acquire_p99_seconds: float | None
    streamed_bytes_per_second: float | None
    loaded_bytes_per_second: float | None


def measure(shelf: Shelf, artifact_id: str, *, round_count: int, reload: bool) -> Measured:
    """Measure one artifact, which is loaded if it is not resident.

    Args:
        shelf: whose daemon.
        artifact_id: which artifact.
        round_count: how often to stream and to load.
        reload: evict it and load it again, to measure loading. It is resident afterwards.
    """
    with shelf.acquire(artifact_id, timeout=LOAD_TIMEOUT_SECONDS) as lease:
        size_bytes, fallback_reason = len(lease.segment_view), lease.fallback_reason
    del lease
    loads = [_load(shelf, artifact_id) for _ in range(round_count)] if reload else []
    acquires = [] if fallback_reason else [_acquire(shelf, artifact_id) for _ in range(ACQUIRE_COUNT)]
    streams = [] if size_bytes > STREAM_BYTES_MAX else _stream(shelf, artifact_id, round_count)
    return Measured(
        artifact_id,
        size_bytes,
        fallback_reason,
        quantile(acquires, 0.5),
        quantile(acquires, 0.99),
        _rate(size_bytes, streams),
        _rate(size_bytes, loads),
    )


def quantile(samples: Sequence[float], share: float) -> float | None:
    """Return the smallest sample that so large a share of them does not exceed; None without samples."""
    return sorted(samples)[min(int(share * len(samples)), len(samples) - 1)] if samples else None


@contextlib.contextmanager
def made_artifact(shelf: Shelf, directory: str) -> Iterator[str]:
    """Write a file of random tensors where the daemon may read, register it, and give its ID.

    Afterwards the daemon knows nothing of it, and the file is gone.

    Raises:
        InvalidRequest: the directory cannot be written.
    """
    name = f"warmshelf-bench-{secrets.token_hex(8)}"
    path = os.path.join(os.path.abspath(directory), f"{name}.safetensors")
    with contextlib.ExitStack() as stack:
        try:
            _write(path)
        except OSError as error:
            raise InvalidRequest(f"cannot write {path}: {error.strerror}", path=path) from error
        finally:
            stack.callback(_unlink, path)
        shelf.register(name, path)
        stack.callback(_remove, shelf, name)
        yield name


def _acquire(shelf: Shelf, artifact_id: str) -> float:
    began = time.perf_counter()
    lease = shelf.acquire(artifact_id, timeout=LOAD_TIMEOUT_SECONDS)
    seconds = time.perf_counter() - began
    lease.release()
    return seconds


def _stream(shelf: Shelf, artifact_id: str, round_count: int) -> list[float]:
    with shelf._streaming() as streaming:  # noqa: SLF001 - the same daemon, by the same right
        return [_acquire(streaming, artifact_id) for _ in range(round_count)]


def _load(shelf: Shelf, artifact_id: str) -> float:
    shelf.evict(artifact_id)
    began = time.perf_counter()
    for _ in shelf.load(artifact_id):
        pass
    return time.perf_counter() - began


def _rate(size_bytes: int, seconds: Sequence[float]) -> float | None:
    middle = quantile(seconds, 0.5)
    return size_bytes / middle if middle else None


def _write(path: str) -> None:
    shape = MADE_TENSOR_BYTES // 2 // 4096, 4096
    specs = [TensorSpec(f"tensor.{i}", "BF16", shape, 0, MADE_TENSOR_BYTES) for i in range(MADE_TENSOR_COUNT)]
    data = os.urandom(MADE_TENSOR_BYTES)
    with open(path, "xb") as file:
        file.write(header_of(specs))
        file.writelines(data for _ in specs)
        file.flush()
        os.fsync(file.fileno())  # or the disk would be busy with it while something is measured


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):  # it was never made
        os.unlink(path)


def _remove(shelf: Shelf, artifact_id: str) -> None:
    with contextlib.suppress(WarmshelfError):  # what went wrong before is what matters
        shelf.remove(artifact_id)

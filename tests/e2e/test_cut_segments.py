"""Segments whose files somebody cuts: a worker that runs as the daemon's own user and is in other hands.

Whoever reads a mapping behind its file's end is killed by a signal. The daemon must not be.
"""

from __future__ import annotations

import os

import grpc
import pytest

from kit.models import write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, eventually, read_all
from warmshelf.errors import SegmentCorrupt
from warmshelf.types import ArtifactState
from warmshelf.v1 import transfer_pb2

MIB = 1 << 20


class CutFile:
    """A segment's file is cut to its first page."""

    def __init__(self, daemon: Daemon, segment_id: str) -> None:
        path = daemon.arena / segment_id
        path.chmod(0o600)
        os.truncate(path, 4096)


def register(daemon: Daemon, name: str, tag: int) -> tuple[str, dict[str, bytes]]:
    """Make an artifact resident and return its segment's ID and its tensors."""
    tensors = write_model(daemon.models / f"{name}.safetensors", tag, 48 * MIB)
    before = set(daemon.segments())
    with daemon.connect() as shelf:
        shelf.register(name, daemon.models / f"{name}.safetensors")
        list(shelf.load(name))
    return next(iter(set(daemon.segments()) - before)), tensors


def state_of(daemon: Daemon, name: str) -> tuple[ArtifactState, str]:
    with daemon.connect() as shelf:
        artifact = shelf.get(name)
    return artifact.state, artifact.failure.reason if artifact.failure else ""


def is_served(daemon: Daemon, name: str, tensors: dict[str, bytes]) -> bool:
    with daemon.connect(arena=os.devnull) as shelf, shelf.acquire(name, timeout=20) as lease:
        return read_all(lease) == tensors


def test_a_segment_cut_while_it_streams_is_withdrawn_and_nothing_else_happens(running: Daemon) -> None:
    segment_id, tensors = register(running, "cut", 1)
    _, others = register(running, "whole", 2)
    with Plain(running.address) as plain:
        chunks = plain.read(plain.acquire("cut").lease.lease_id)
        next(chunks)
        CutFile(running, segment_id)
        with refused(grpc.StatusCode.DATA_LOSS, "SEGMENT_CORRUPT") as details:
            list(chunks)
        assert "somebody has cut it" in details["message"]
    assert state_of(running, "cut") == (ArtifactState.FAILED, "SEGMENT_CORRUPT")
    assert is_served(running, "whole", others)
    assert is_served(running, "cut", tensors)  # loaded again
    assert running.process is not None
    assert running.process.poll() is None


def test_a_segment_cut_while_its_slices_stream_is_withdrawn(running: Daemon) -> None:
    segment_id, _ = register(running, "cut", 1)
    with Plain(running.address) as plain:
        lease_id = plain.acquire("cut").lease.lease_id
        slices = [transfer_pb2.TensorSlice(tensor_index=index, dim=0, start=0, stop=1 << 20) for index in range(4)]
        request = transfer_pb2.ReadTensorsRequest(session_id=plain.session_id, lease_id=lease_id, slices=slices)
        assert list(plain.transfer.ReadTensors(request, timeout=20))
        CutFile(running, segment_id)
        with refused(grpc.StatusCode.DATA_LOSS, "SEGMENT_CORRUPT"):
            list(plain.transfer.ReadTensors(request, timeout=20))
    assert state_of(running, "cut") == (ArtifactState.FAILED, "SEGMENT_CORRUPT")


def test_verifying_a_cut_segment_withdraws_it(running: Daemon) -> None:
    segment_id, _ = register(running, "cut", 1)
    with running.connect() as shelf:
        eventually(lambda: shelf.get("cut").digest != "", "its digest is known, so that nobody else reads it now")
        CutFile(running, segment_id)
        with pytest.raises(SegmentCorrupt):
            shelf.verify("cut")
    assert state_of(running, "cut") == (ArtifactState.FAILED, "SEGMENT_CORRUPT")

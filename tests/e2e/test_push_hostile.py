"""Pushes by clients that err or mean harm: every one refused by name, and nothing of it left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kit.models import filled, safetensors_bytes
from kit.plain import refused
from kit.processes import Daemon
from kit.pushes import CHUNK, PlainPush, kept, spool_of, spooled_bytes, unfinished
from warmshelf.v1 import push_pb2

pytestmark = pytest.mark.e2e

FILES = {"model.safetensors": safetensors_bytes(filled(1, size=3 * CHUNK)), "config.json": b"{}"}
INVALID, LOSS = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
PushFile = push_pb2.PushFile


@pytest.fixture
def push(shared: Daemon) -> Iterator[PlainPush]:
    with PlainPush(shared.address, FILES) as it:
        yield it
        it.stub.AbandonPush(push_pb2.AbandonPushRequest(push_id=it.push_id))
    assert unfinished(shared) == []


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/b",
        "..",
        ".",
        "",
        ".hidden",
        "a\0b",
        "a\nb",
        "x" * 256,
        "ü" * 128,
        "a\u202eb",
        "a/../b",
    ],
)
def test_a_name_that_is_no_files_name_is_refused(shared: Daemon, push: PlainPush, name: str) -> None:
    """T: path tricks; names of files are made of one part and stay in their directory."""
    before = sorted(spool_of(shared).rglob("*"))
    with refused(INVALID, "INVALID_REQUEST"):
        push.begin(files=[PushFile(name="ok.json", size_bytes=1), PushFile(name=name, size_bytes=1)])
    assert sorted(spool_of(shared).rglob("*")) == before


@pytest.mark.parametrize(
    "files",
    [
        [],
        [PushFile(name="a", size_bytes=1), PushFile(name="a", size_bytes=1)],
        [PushFile(name="a", size_bytes=-1)],
        [PushFile(name=f"{i}", size_bytes=0) for i in range(4097)],
    ],
    ids=["none", "twice", "negative", "too many"],
)
def test_files_that_cannot_be_are_refused(push: PlainPush, files: list[PushFile]) -> None:
    push.files = {}
    with refused(INVALID, "INVALID_REQUEST"):
        push.begin(files=files)


@pytest.mark.parametrize("size", [1 << 50, (1 << 63) - 1])
def test_more_than_there_can_be_is_refused_at_once(push: PlainPush, size: int) -> None:
    with refused(EXHAUSTED, "LARGER_THAN_SPOOL"):
        push.begin(files=[PushFile(name="a", size_bytes=size), PushFile(name="b", size_bytes=size)])


@pytest.mark.parametrize("push_id", ["", "x", "AB" * 16, "../" + "a" * 29, "a" * 33, "a" * 31 + "\n"])
def test_a_number_that_is_none_is_refused_by_every_call(push: PlainPush, push_id: str) -> None:
    number, push.push_id = push.push_id, push_id
    chunk = push_pb2.WritePushRequest(push_id=push_id)
    for call in (push.begin, push.finish, lambda: push.write([chunk])):
        with refused(INVALID, "INVALID_REQUEST"):
            call()  # type: ignore[operator]
    push.push_id = number


@pytest.mark.parametrize("artifact_id", ["", "../x", "a//b", "x" * 256])
def test_an_id_that_is_none_is_refused_before_any_byte(push: PlainPush, artifact_id: str) -> None:
    with refused(INVALID, "INVALID_ID"):
        push.begin(artifact_id)


def test_a_chunk_is_written_only_where_its_file_ends(push: PlainPush) -> None:
    """N12: dropped, duplicated, reordered, foreign."""
    push.begin()
    push.write([push.chunk(0, 0)])
    size = len(FILES["model.safetensors"])
    wrong = {
        "again": (push.chunk(0, 0), LOSS, "CHUNK_CORRUPT"),
        "overlapping": (push.chunk(0, 100), LOSS, "CHUNK_CORRUPT"),
        "with a gap": (push.chunk(0, 2 * CHUNK), LOSS, "CHUNK_CORRUPT"),
        "beyond": (push.chunk(0, CHUNK, offset_bytes=size), grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"),
        "negative": (push.chunk(0, CHUNK, offset_bytes=-1), grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"),
        "wraps": (push.chunk(0, 0, offset_bytes=(1 << 63) - 1), grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"),
        "no such file": (push.chunk(1, 0, file_index=2), INVALID, "INVALID_REQUEST"),
        "negative file": (push.chunk(1, 0, file_index=-1), INVALID, "INVALID_REQUEST"),
        "empty": (push.chunk(0, CHUNK, data=b""), INVALID, "INVALID_REQUEST"),
        "too long": (push.chunk(0, CHUNK, size=CHUNK + 1), INVALID, "INVALID_REQUEST"),
        "flipped": (push.chunk(0, CHUNK, crc32c=1), LOSS, "CHUNK_CORRUPT"),
    }
    for what, (chunk, code, reason) in wrong.items():
        with refused(code, reason):
            push.write([chunk])
        assert push.begin() == [CHUNK, 0], what
    push.write(push.chunks([CHUNK, 0]))
    assert push.finish().inspection.tensor_count == 1


def test_a_message_above_the_limit_is_refused(push: PlainPush) -> None:
    push.begin()
    chunk = push_pb2.WritePushRequest(push_id=push.push_id, data=bytes(2 << 20))
    with pytest.raises(grpc.RpcError) as caught:
        push.write([chunk])
    assert caught.value.code() is EXHAUSTED
    assert push.begin() == [0, 0]


def test_bytes_of_another_digest_are_never_an_artifact(shared: Daemon, push: PlainPush) -> None:
    push.begin()
    push.write(push.chunks())
    other = hashlib.sha256(b"other").digest()
    for hashes in ((other,), (other, b"short"), (other,) * 3):
        with refused(INVALID, "INVALID_REQUEST"):
            push.finish(*hashes)
    with refused(LOSS, "DIGEST_MISMATCH") as details:
        push.finish(hashlib.sha256(FILES["model.safetensors"]).digest(), other)
    assert details["expected"] == f"sha256:{other.hex()}"
    with refused(grpc.StatusCode.NOT_FOUND, "PUSH_NOT_FOUND"):
        push.finish()
    with shared.connect() as shelf:
        assert shelf.list() == []
    assert kept(shared) + unfinished(shared) == []


def test_what_is_not_whole_is_not_finished(push: PlainPush) -> None:
    push.begin()
    push.write([push.chunk(0, 0)])
    with refused(INVALID, "INVALID_REQUEST") as details:
        push.finish()
    assert int(details["missing_bytes"]) == len(FILES["model.safetensors"]) - CHUNK + 2
    assert push.begin() == [CHUNK, 0]


def test_one_number_is_one_push(push: PlainPush) -> None:
    push.begin()
    for change in ({"artifact_id": "b"}, {"replace": True}, {"files": [PushFile(name="x", size_bytes=1)]}):
        with refused(INVALID, "INVALID_REQUEST"):
            push.begin(**change)  # type: ignore[arg-type]


def test_a_finished_push_takes_no_more_bytes(shared: Daemon, push: PlainPush) -> None:
    push.begin()
    push.write(push.chunks())
    artifact = push.finish()
    with refused(INVALID, "INVALID_REQUEST"):
        push.write([push.chunk(0, 0)])
    push.stub.AbandonPush(push_pb2.AbandonPushRequest(push_id=push.push_id))
    assert kept(shared) == [push.push_id]
    assert push.finish().digest == artifact.digest


def test_thousands_of_pushes_that_nobody_finishes_are_bounded(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start(env={"WARMSHELF_PUSHES_MAX": "5"})
    before = daemon.memory_bytes()
    with PlainPush(daemon.address, FILES) as it:
        codes = []
        for number in range(2000):
            it.push_id = f"{number:032x}"
            try:
                codes.append(len(it.begin()))
            except grpc.RpcError as error:
                codes.append(error.code())
        assert codes == [2] * 5 + [EXHAUSTED] * 1995
        it.push_id = f"{0:032x}"
        it.stub.AbandonPush(push_pb2.AbandonPushRequest(push_id=it.push_id))
        assert it.begin() == [0, 0]
    assert len(unfinished(daemon)) == 5
    assert spooled_bytes(daemon) == 0
    assert daemon.memory_bytes() - before < 20 << 20

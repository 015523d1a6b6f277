"""An inspection ends as soon as nobody waits for it, and all together read only so much at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kit.processes import eventually
from kit.tensors_file import Written, tensors_file
from warmshelf.errors import LoadCancelled
from warmshelf.types import Source
from warmshelfd.decrypting import Keys
from warmshelfd.formats.base import FormatLimits
from warmshelfd.header_room import FREE_BYTES, HeaderRoom
from warmshelfd.inspecting import Sources
from warmshelfd.sources.file import FileOpener
from warmshelfd.stopping import heeding

COUNT = 9000
MIB = 1 << 20


class StopAt:
    """Nobody waits any more from the n-th time on that somebody looks."""

    def __init__(self, number: int = 1 << 60) -> None:
        self.number = number
        self.looks = 0

    def __call__(self) -> bool:
        self.looks += 1
        return self.looks >= self.number


def safetensors_of_many() -> bytes:
    header = {f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(COUNT)}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(COUNT)


def tensors_of_many() -> bytes:
    return tensors_file([Written(b"t%d" % i, b"|u1", (1,), b"x") for i in range(COUNT)]).content


@pytest.mark.parametrize(
    ("name", "make"), [("m.safetensors", safetensors_of_many), ("m.tensors", tensors_of_many)], ids=lambda x: str(x)[:9]
)
def test_an_inspection_stops_within_one_tensor_wherever_it_is(
    name: str, make: Callable[[], bytes], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(make())
    source = Source(f"file://{tmp_path}")

    def inspect(stop: StopAt) -> int:
        sources = Sources({"file": FileOpener([str(tmp_path)])}, FormatLimits(), Keys(()), MIB)
        with sources.open(source) as opened:
            return sources.examine(opened, stop).inspection.tensor_count

    whole = StopAt()
    assert inspect(whole) == COUNT
    assert whole.looks > COUNT
    for number in (1, 2, 100, COUNT - 1, whole.looks):
        stop = StopAt(number)
        with pytest.raises(LoadCancelled):
            inspect(stop)
        assert stop.looks == number


class OneFile:
    """A file of zeros, of whatever length."""

    def files(self) -> Mapping[str, int]:
        return {"f": 1 << 40}

    def read(self, name: str, offset: int, size: int) -> bytes:
        return b""


def test_inspections_wait_for_room_and_the_oldest_never_does() -> None:
    room, held, done = HeaderRoom(100 * MIB), threading.Event(), threading.Event()

    def other() -> None:
        with room.inspecting(OneFile()) as files:
            files.read("f", 0, 40 * MIB)
            held.set()
            files.read("f", 0, 50 * MIB)
            done.set()

    with room.inspecting(OneFile()) as files:
        files.read("f", 0, 60 * MIB)
        thread = threading.Thread(target=other)
        thread.start()
        assert held.wait(10)
        files.read("f", 0, 1000 * MIB)
        assert not done.is_set()
    thread.join(10)
    assert done.is_set()


def test_what_usual_headers_take_never_waits() -> None:
    room = HeaderRoom(MIB)
    with room.inspecting(OneFile()) as huge, room.inspecting(OneFile()) as usual:
        huge.read("f", 0, 100 * MIB)
        usual.read("f", 0, FREE_BYTES // 2)
        usual.read("f", 0, FREE_BYTES // 2)
        with heeding(StopAt(1)), pytest.raises(LoadCancelled):
            usual.read("f", 0, 1)


def test_who_waits_for_room_stops_when_nobody_wants_it() -> None:
    room, stopped = HeaderRoom(100 * MIB), threading.Event()

    def other() -> None:
        with heeding(StopAt(3)), room.inspecting(OneFile()) as files, pytest.raises(LoadCancelled):
            files.read("f", 0, 50 * MIB)
        stopped.set()

    with room.inspecting(OneFile()) as files:
        files.read("f", 0, 60 * MIB)
        threading.Thread(target=other).start()
        eventually(stopped.is_set, "it has stopped")
        files.read("f", 0, 1)

"""Every fuzz target for some seconds: enough to see what a change breaks. ``make fuzz`` tries longer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import TARGETS, fuzz
from fuzz.oracle import MEMORY_BYTES, Oracle, TookTooMuch
from fuzz.served import methods

SECONDS = 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="atheris has no wheel for Python 3.10")
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_in_some_seconds(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = fuzz(name, SECONDS, tmp_path / "corpus", str(tmp_path))
    assert count is not None, capsys.readouterr().out
    assert count > 100


def test_the_oracle_sees_other_errors_and_too_much_memory() -> None:
    class Refused(Exception):  # noqa: N818
        pass

    def run(data: bytes) -> None:
        if data == b"typed":
            raise Refused
        if data == b"bug":
            raise KeyError(data)
        if data == b"greedy":
            bytearray(MEMORY_BYTES + 1000)

    oracle = Oracle(run, (Refused,))
    oracle(b"typed")
    oracle.measure([b"typed", b"fine"])
    with pytest.raises(KeyError):
        oracle(b"bug")
    with pytest.raises(TookTooMuch):
        oracle.measure([b"greedy"])


def test_every_call_of_the_protocol_is_among_the_requests() -> None:
    """A new call is fuzzed from its first day: the proto's own list says which there are."""
    files = Path(__file__).parents[2].joinpath("protos", "warmshelf", "v1").glob("*.proto")
    named = {name for file in files for name in re.findall(r"^ +rpc (\w+)\(", file.read_text(), re.MULTILINE)}
    assert {method.name for method in methods()} == named
    assert {"BeginPush", "WritePush", "FinishPush", "AbandonPush"} <= named

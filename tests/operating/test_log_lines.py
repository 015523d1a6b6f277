"""The log: one line for each record, in the form asked for, and never waited for."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from warmshelfd.logs import LineWriter

CODE = """
import logging, sys, structlog
from warmshelfd.logs import LogFormat, set_up_log
early = structlog.get_logger("fields")  # as modules do: before anything is set up
set_up_log(LogFormat(sys.argv[1]))
logging.getLogger("plain").warning("careful with %s", 'a "b"\\nc')
logging.getLogger("plain").debug("not shown")
early.info("call", code="OK", seconds=0.5)
secret = "SECRET1"
try:
    raise ValueError("broken")
except ValueError:
    logging.getLogger("plain").exception("a bug")
"""


def written(log_format: str, stderr: int | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE, log_format], stderr=subprocess.PIPE if stderr is None else stderr, check=True
    )
    return (done.stderr or b"").decode()


# --- form ---------------------------------------------------------------------


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_every_record_is_one_json_object_on_one_line(log_format: str) -> None:
    lines = [json.loads(line) for line in written(log_format).splitlines()]
    assert [line["event"] for line in lines] == ['careful with a "b"\nc', "call", "a bug"]
    assert [line["logger"] for line in lines] == ["plain", "fields", "plain"]
    assert [line["level"] for line in lines] == ["warning", "info", "error"]
    assert (lines[1]["code"], lines[1]["seconds"]) == ("OK", 0.5)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["time"]) for line in lines)


def test_a_traceback_is_text_without_the_values_of_variables() -> None:
    for log_format in ("json", "text"):
        text = written(log_format)
        assert "ValueError: broken" in text
        assert "SECRET1" not in text


def test_text_is_for_people_and_has_no_colour_where_there_is_no_terminal() -> None:
    first, *_ = written("text").splitlines()
    assert "careful with" in first
    assert "warning" in first
    assert "\x1b" not in first
    assert not first.startswith("{")


def test_a_terminal_gets_text_unless_json_is_asked_for() -> None:
    for log_format, is_json in (("auto", False), ("json", True)):
        terminal, its_end = pty.openpty()
        try:
            written(log_format, stderr=its_end)
            assert os.read(terminal, 1 << 16).startswith(b"{") is is_json
        finally:
            os.close(its_end)
            os.close(terminal)


# --- never waiting ------------------------------------------------------------


class Pipe:
    """A pipe that nobody has read yet, and a log that goes there."""

    def __init__(self) -> None:
        self.end, self._start = os.pipe()
        self._writer = LineWriter(self._start)
        self._writer.on_lost = self._count
        self.lost = 0

    def _count(self) -> None:
        self.lost += 1

    def log(self, text: str) -> None:
        self._writer.write(text)

    def read(self) -> list[str]:
        """Return every line that has been written, and close the pipe."""
        os.close(self._start)
        with os.fdopen(self.end) as file:
            return file.read().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    return Pipe()


def test_a_pipe_that_nobody_reads_loses_lines_and_holds_up_nobody(pipe: Pipe) -> None:
    count = 3000  # 64 KiB are full after some 650
    for number in range(count):
        pipe.log(f"{number:06} " + "x" * 93)
    lines = pipe.read()
    assert 0 < len(lines) < count
    assert pipe.lost == count - len(lines)
    assert [int(line[:6]) for line in lines] == list(range(len(lines)))


def test_a_long_line_is_cut_where_there_is_no_room_and_the_next_begins_on_its_own(pipe: Pipe) -> None:
    pipe.log("a" * 1_000_000)
    assert pipe.lost == 1
    os.read(pipe.end, 1 << 16)
    pipe.log("next")
    assert pipe.read()[-1] == "next"


def test_a_reader_that_has_gone_is_no_error(pipe: Pipe) -> None:
    os.close(pipe.end)
    pipe.log("nobody")
    os.close(pipe._start)


def test_a_line_of_any_text_is_written(pipe: Pipe) -> None:
    pipe.log("\ud800 half a pair")
    assert pipe.read() == ["\\ud800 half a pair"]

"""Cores to order about and to kill; ``kit.core_process`` is what runs in them."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from kit.core_process import QUIET_SECONDS, Places
from warmshelf.errors import WarmshelfError

_ROOT = Path(__file__).resolve().parents[2]
_MAIN = "import sys; from kit.core_process import main; main(sys.argv[1])"
_LOST_SECONDS = QUIET_SECONDS + 10


class Died(Exception):  # noqa: N818 - it says what happened
    """The core has died, and the call has no answer."""


class Bug(AssertionError):  # noqa: N818 - it says what was found
    """The core raised what is no error of the table."""


@dataclass(frozen=True)
class Answer:
    """How a call ended: ``reason`` is "" if it succeeded, CANCELLED or DIED without an answer."""

    reason: str
    value: Any = None
    error: WarmshelfError | None = None


class Core:
    """One core."""

    def __init__(self, connection: Any, places: Places) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        connection.send(places)
        self.pid = connection.recv()
        assert isinstance(self.pid, int), self.pid
        self.is_alive = True
        self._fd = os.pidfd_open(self.pid)

    def begin(self, name: str, *arguments: Any, delay_seconds: float = 0.0) -> int:
        """Begin a call, after a while; return its number."""
        number = next(self._numbers)
        with contextlib.suppress(OSError):  # it has died: ``end`` says so
            self._connection.send((number, name, arguments, delay_seconds))
        return number

    def cancel(self, number: int) -> None:
        """Cancel a call under way."""
        with contextlib.suppress(OSError):
            self._connection.send((number, "cancel", (), 0.0))

    def end(self, number: int) -> Answer:
        """Wait for a call's end."""
        while number not in self._answers:
            if not self._connection.poll(_LOST_SECONDS):
                raise Bug(f"no answer within {_LOST_SECONDS} s")
            try:
                self._receive()
            except (EOFError, OSError):
                return Answer("DIED")
        return self._answers.pop(number)

    def end_any(self, numbers: Collection[int]) -> int | None:
        """Wait until one of these calls has ended, of which ``end`` then tells how; None if the core has died."""
        while not (ended := self._answers.keys() & numbers):
            if not self._connection.poll(_LOST_SECONDS):
                raise Bug(f"no answer within {_LOST_SECONDS} s")
            try:
                self._receive()
            except (EOFError, OSError):
                return None
        return min(ended)

    def _receive(self) -> None:
        number, how, value = self._connection.recv()
        if how == "bug":
            raise Bug(value)
        if how == "error":
            self._answers[number] = Answer(value.reason, error=value)
        else:
            self._answers[number] = Answer("" if how == "ok" else "CANCELLED", value)

    def ask(self, name: str, *arguments: Any) -> Answer:
        return self.end(self.begin(name, *arguments))

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what a call that must succeed returns."""
        answer = self.ask(name, *arguments)
        assert not answer.reason, (name, arguments, answer)
        return answer.value

    def wait_stopped(self, number: int) -> bool:
        """Wait until the core has stopped itself at a failpoint; False if the call ends without that."""
        while True:
            if Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
            if number in self._answers:
                return False
            if self._connection.poll(0.001):
                self._receive()

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, as it is."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """Let it end in order."""
        self.begin("stop")
        self._wait()

    def _wait(self) -> None:
        assert select.select([self._fd], [], [], _LOST_SECONDS)[0], "the process has not ended"
        os.close(self._fd)
        self.is_alive = False


class Cores:
    """Starts cores, each in milliseconds."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="warmshelf-cores-")
        self._socket = f"{self._directory.name}/cores.sock"
        path = os.pathsep.join(str(_ROOT / part) for part in ("client", "service", "tests"))
        environ = {k: v for k, v in os.environ.items() if not k.startswith("WARMSHELF_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, self._socket],
            env={**environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"
        self._last: Core | None = None

    def start(self, places: Places) -> Core:
        """Start a core; the one before it has ended, or ends now."""
        self._end_last()
        self._last = Core(Client(self._socket, "AF_UNIX"), places)
        return self._last

    def close(self) -> None:
        self._end_last()
        self._process.kill()
        self._process.communicate()
        self._directory.cleanup()

    def _end_last(self) -> None:
        if self._last is not None and self._last.is_alive:
            self._last.kill()

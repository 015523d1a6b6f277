"""Daemons from a nursery, with the same face as those of ``kit.processes``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from killing.nursery import ENDED, STARTED
from kit.processes import Daemon

LINE_SECONDS = 60
"""No start and no death takes so long, however busy the machine is."""


class NurseryDaemon(Daemon):
    """One daemon after another, each forked from the nursery."""

    def __init__(self, root: Path, arena: Path, models: Path) -> None:
        super().__init__(root, arena, models)
        self._pid = 0
        self._ended: int | None = 0
        self._pieces = b""
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "killing.nursery"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self._pid

    def begin(self, *options: str, failpoints: str = "") -> None:
        """Start one; it may die before it is ready."""
        assert self._nursery.stdin is not None
        order = {"arguments": self.command(*options)[3:], "failpoints": failpoints, "log": str(self.log)}
        self._ended, self._pid, self.ready_line = None, 0, ""
        self._nursery.stdin.write(json.dumps(order).encode() + b"\n")
        self._nursery.stdin.flush()
        while not self._pid:
            self.take_line()

    def wait_ready(self) -> None:
        while not self.ready_line and self._ended is None:
            self.take_line()
        found = re.search(r"127\.0\.0\.1:\d+", self.ready_line)
        assert found is not None, f"daemon is not ready: it ended with {self._ended}\n{self.log.read_text()}"
        self.tcp_address = found[0]

    def has_died(self, seconds: float) -> bool:
        """Say whether it dies within some seconds."""
        deadline = time.monotonic() + seconds
        while self._ended is None and self._is_readable(max(0, deadline - time.monotonic())):
            self.take_line()
        return self._ended is not None

    def wait(self) -> int:
        while self._ended is None:
            self.take_line()
        return self._ended

    def kill(self, number: int = signal.SIGKILL) -> int:
        if not self.has_died(0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
        return self.wait()

    def close(self) -> None:
        """End the daemon and the nursery."""
        self.kill()
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.wait(LINE_SECONDS)
        self._nursery.stdout.close()

    def _is_readable(self, seconds: float) -> bool:
        assert self._nursery.stdout is not None
        return b"\n" in self._pieces or bool(select.select([self._nursery.stdout], [], [], seconds)[0])

    def take_line(self) -> None:
        """Wait for one line of the nursery or the daemon."""
        assert self._nursery.stdout is not None
        while b"\n" not in self._pieces:
            assert self._is_readable(LINE_SECONDS), f"no line of the nursery\n{self.log.read_text()}"
            piece = os.read(self._nursery.stdout.fileno(), 4096)
            assert piece, "the nursery ended"
            self._pieces += piece
        line, _, self._pieces = self._pieces.partition(b"\n")
        text = line.decode()
        if text.startswith(STARTED):
            self._pid = int(text.rpartition(" ")[2])
        elif text.startswith(ENDED):
            self._ended = int(text.rpartition(" ")[2])
        elif " ready: " in text:
            self.ready_line = text

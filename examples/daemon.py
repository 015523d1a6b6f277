"""A warmshelfd of one's own: a real process with its own sockets, arena and registry.

It knows how to start, kill and clean up after one; it does not know what is served.
The demo and the benchmarks both run theirs with it. If they are killed, it ends too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from examples.places import own_directory
from examples.tied import tied

READY_SECONDS_MAX = 60.0
"""Longest wait for the line that says it is ready; an empty arena takes well under one."""

STOP_SECONDS_MAX = 15.0
"""Longest wait after SIGTERM before SIGKILL."""

LOOK_SECONDS = 0.001
"""Pause between two looks at the log: how exact the time to ready is."""


class Daemon:
    """One daemon that can be started, killed and started again in the same place.

    Attributes:
        address: its Unix socket, for clients that map.
        tcp_address: host and port on the loopback interface.
        arena: its directory of segments.
    """

    def __init__(self, home: Path, *, arena: Path, sources: Path, budget: str, options: Sequence[str] = ()) -> None:
        self.address = f"unix://{home}/api.sock"
        self.tcp_address = f"127.0.0.1:{_free_port()}"
        self.arena = arena
        self._log = home / "daemon.log"
        self._command = tied("warmshelfd", "--listen", self.address, "--listen", self.tcp_address)
        self._command += ["--arena", str(arena), "--budget", budget, "--registry", f"sqlite:///{home}/registry.db"]
        self._command += ["--allow-source", f"file://{sources}", *options]
        self._process: subprocess.Popen[bytes] | None = None  # the one running, if any

    @property
    def pid(self) -> int:
        """Process ID of the daemon that runs."""
        if self._process is None:
            raise RuntimeError("the daemon is not running")
        return self._process.pid

    def start(self) -> float:
        """Start it; return the seconds from the start of the process to its ready line."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WARMSHELF_")}
        with self._log.open("wb") as log:
            began = time.perf_counter()
            # A session of its own: Ctrl-C reaches only us, and we end it in order.
            self._process = subprocess.Popen(
                self._command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_ready(self._process)
        return time.perf_counter() - began

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, no warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; fine if it does not run."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._says_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"warmshelfd did not become ready:\n{self._log.read_text()}")
            time.sleep(LOOK_SECONDS)

    def _says_ready(self) -> bool:
        return b" ready: " in self._log.read_bytes()


@contextmanager
def own_daemon(
    *, sources: Path, budget: str, arena_parent: Path = Path("/dev/shm"), options: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Make places for a daemon, not started yet; at the end stop it and remove them."""
    with own_directory() as home, own_directory(arena_parent) as arena:
        daemon = Daemon(home, arena=arena, sources=sources, budget=budget, options=options)
        try:
            yield daemon
        finally:
            daemon.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""Real daemons and real workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import warmshelf
from kit.ports import free_port

READY_SECONDS = 20
GONE_SECONDS = 30


class Daemon:
    """One ``warmshelfd`` process and the places it uses. Start it again and it finds them again."""

    def __init__(self, root: Path, arena: Path, models: Path) -> None:
        self.root = root
        self.arena = arena
        self.models = models
        self.socket = root / "run" / "api.sock"
        self.registry = root / "state" / "registry.sqlite"
        self.log = root / "daemon.log"
        self.process: subprocess.Popen[str] | None = None
        self.ready_line = ""  # or what the log said of the places when the daemon listened
        self._log_bytes = 0  # of earlier lives
        self.tcp_address = f"127.0.0.1:{free_port()}"  # the same at every start
        self.tenants: tuple[str, ...] = ()  # those that it has been told of, each with a directory in the arena

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self, *options: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "warmshelfd",
            *("--listen", self.address, "--listen", self.tcp_address),
            *("--arena", str(self.arena), "--registry", f"sqlite:///{str(self.registry).lstrip('/')}"),
            *("--allow-source", f"file://{self.models}"),
            *options,
        ]

    def start(
        self, *options: str, failpoints: str = "", wait: bool = True, env: Mapping[str, str] | None = None
    ) -> Daemon:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("WARMSHELF_")}
        if os.geteuid() != 0:  # else what is in the daemon's /proc could not be counted
            environ["WARMSHELF_TRACEABLE"] = "true"
        environ.update(env or {})
        if failpoints:
            environ["WARMSHELF_FAILPOINTS"] = failpoints
        with self.log.open("ab") as log:
            self._log_bytes = log.tell()
            self.process = self._launch(self.command(*options), environ, log)
        if wait:
            self.wait_ready()
        return self

    def _launch(self, command: list[str], environ: Mapping[str, str], log: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, cwd=self.root)

    def wait_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        self.ready_line = self.process.stdout.readline() if readable else ""
        if " ready: " not in self.ready_line:
            self.kill()
            pytest.fail(f"daemon is not ready: {self.ready_line!r}\n{self.log.read_text()}")
        self._take_address()

    def wait_listening(self) -> None:
        """Wait until calls are answered, which is before the preload has been tried."""
        assert self.process is not None
        begin = self._log_bytes

        def is_listening() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            found = re.search(r"listening: ([^\"\n]*)", self.log.read_bytes()[begin:].decode())
            self.ready_line = found[1] if found else ""
            return bool(found)

        eventually(is_listening, "the daemon listens", READY_SECONDS)
        self._take_address()

    def _take_address(self) -> None:
        match = re.search(r"127\.0\.0\.1:\d+", self.ready_line)
        assert match is not None
        self.tcp_address = match[0]

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the process by a signal and return its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        status = self.process.wait(GONE_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def connect(self, **options: object) -> warmshelf.Shelf:
        return warmshelf.connect(self.address, **options)  # type: ignore[arg-type]

    def memory_bytes(self) -> int:
        """What the process has of memory that belongs to no file: not the arena."""
        return _of_proc(self.pid, "status", "RssAnon") << 10

    def read_bytes(self) -> int:
        """What the process has read through system calls since it started: from sources, and from sealed segments."""
        return _of_proc(self.pid, "io", "rchar")

    def segments(self) -> list[str]:
        return sorted(p.name for p in self.arena.iterdir() if re.fullmatch(r"[0-9a-f]{32}", p.name))

    def arena_bytes(self) -> int:
        """What the arena's files take, also those that have lost their name and that the daemon still has open."""
        opened = [link for link in Path(f"/proc/{self.pid}/fd").iterdir() if _leads_below(link, self.arena)]
        sizes: dict[int, int] = {}
        for path in (*self.arena.iterdir(), *opened):
            with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                status = path.stat()
                sizes[status.st_ino] = status.st_blocks * 512
        return sum(sizes.values())

    def leftovers(self) -> list[str]:
        """Everything in the arena, and in those of tenants, but sealed segments and the lock."""
        found = [path for path in self.arena.iterdir() if path.name not in self.tenants]
        found += [path for tenant in self.tenants for path in self.arena.glob(f"{tenant}/*")]
        known = re.compile(r"[0-9a-f]{32}|arena\.lock")
        return sorted(path.name for path in found if not known.fullmatch(path.name))

    def check(self) -> None:
        """What must hold whenever nothing is under way: no half-loaded file, no bug in the log."""
        assert self.leftovers() == []
        text = self.log.read_text() if self.log.exists() else ""
        assert "Traceback" not in text, text


def _leads_below(link: Path, directory: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return str(link.readlink()).startswith(f"{directory}/")
    return False


def _of_proc(pid: int, file: str, key: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise KeyError(key)


class Worker:
    """A worker process that runs a few lines of Python and can be told to go on."""

    def __init__(self, code: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in ``end``
        self.noise = ""  # what it wrote to its standard error, once it has ended
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def line(self, seconds: float = 30.0) -> str:
        """Return the worker's next line of output."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().strip() if readable else ""

    def tell(self, text: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> int:
        """End the process by a signal, unless it has ended, and return its exit status. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until the process has ended by itself and return its exit status."""
        status = self.process.wait(GONE_SECONDS)
        if not self._errors.closed:
            self._errors.seek(0)
            self.noise = self._errors.read()
            self._errors.close()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        return status


def read_all(lease: warmshelf.Lease) -> dict[str, bytes]:
    """Return a copy of every tensor's bytes."""
    return {name: bytes(lease[name]) for name in lease}


def eventually(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Wait until a condition holds that another process brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        select.select([], [], [], 0.01)

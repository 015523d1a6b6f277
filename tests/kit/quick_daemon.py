"""Daemons that start in milliseconds: forked from a process that has imported what they need.

Importing takes most of a daemon's start, and most tests are about something else. Each daemon is a
process of its own all the same, with its own arguments, environment and directory, and
runs ``warmshelfd.__main__`` from its first line. What depends on how Python itself is started, or on the
command line that others see in ``/proc``, takes ``kit.processes.Daemon``.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from kit.processes import Daemon

_ORDER_BYTES_MAX = 1 << 20
_OF_PYTHON = ("PYTHON", "LD_", "MALLOC_", "GRPC_")
"""Beginnings of variables that a process looks at before anybody could tell it of them."""


class Forked:
    """What a ``Popen`` shows of a process that another process forked."""

    def __init__(self, connection: socket.socket, stdout: Any) -> None:
        self._connection = connection
        self.stdout = stdout
        self.pid = int(connection.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("warmshelfd", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _status(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(seconds)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self.returncode = int(self._connection.recv(64))
                self._connection.close()
        return self.returncode


class QuickDaemon(Daemon):
    """As ``Daemon``, from the nursery wherever that is the same."""

    def _launch(self, command: list[str], environ: Mapping[str, str], log: Any) -> Any:
        if command[:3] != [sys.executable, "-m", "warmshelfd"] or any(
            name.startswith(_OF_PYTHON) and os.environ.get(name) != value for name, value in environ.items()
        ):
            return super()._launch(command, environ, log)
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read_end, write_end = os.pipe()
        order = json.dumps({"argv": command[3:], "environ": dict(environ), "cwd": str(self.root)}).encode()
        fds = array.array("i", [its.fileno(), write_end, log.fileno()])
        _nursery()[0].sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        its.close()
        os.close(write_end)
        return Forked(mine, os.fdopen(read_end))


@cache
def _nursery() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the nursery and return where it takes orders; it ends with this process, whose end is closed then."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.quick_daemon", str(its.fileno())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
    )
    its.close()
    return mine, process


# --- in the nursery ---------------------------------------------------------


def main(orders: socket.socket) -> None:
    """Fork for each order a process that starts the daemon and tells of its end."""
    import warmshelfd.__main__  # noqa: F401, PLC0415 - what takes long, once

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        text, data, _flags, _address = orders.recvmsg(_ORDER_BYTES_MAX, socket.CMSG_SPACE(3 * 4))
        if not text:
            return
        fds = array.array("i", data[0][2])
        if not os.fork():
            orders.close()
            _mind(json.loads(text), *fds)
        for fd in fds:
            os.close(fd)


def _mind(order: Mapping[str, Any], connection: int, stdout: int, log: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        os.close(connection)
        _become(order, stdout, log)
    for fd in (stdout, log):
        os.close(fd)
    os.write(connection, b"%d" % pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # whoever asked has gone
        os.write(connection, b"%d" % status)
    os._exit(0)


def _become(order: Mapping[str, Any], stdout: int, log: int) -> None:
    from warmshelfd import __main__, failpoints  # noqa: PLC0415 - imported already

    sys.argv = ["warmshelfd", *order["argv"]]
    os.environ.clear()
    os.environ.update(order["environ"])
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # as an import of warmshelfd does
    os.chdir(order["cwd"])
    for fd, place in ((stdout, 1), (log, 2)):
        os.dup2(fd, place)
        os.close(fd)
    assert threading.active_count() == 1
    failpoints._ARMED.update(failpoints._parse(os.environ.get("WARMSHELF_FAILPOINTS", "")))
    status = 1
    try:
        __main__.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as told:
        main(told)

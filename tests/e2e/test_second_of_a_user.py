"""Promise 14 for a user without rights, who cannot look into its own daemon: who has the port is told all the same.

As root the daemons run as users of their own; without root as the one who runs the tests.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.processes import Daemon, Worker
from kit.scrape import HTTP
from warmshelfd.holders import port_holder, put_up_signs

pytestmark = pytest.mark.e2e

USER, OTHER_USER = 47110, 47111
IS_ROOT = os.geteuid() == 0
LISTENS = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.readline()
"""
SEEN = "import os, sys; os.listdir(sys.argv[1])"
ASKED = "import sys; from warmshelfd.holders import port_holder; print(*port_holder(int(sys.argv[1])))"


def as_user(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if IS_ROOT else []


def said(code: str, argument: object) -> str:
    """Return what a program of a user without rights says."""
    command = [*as_user(USER), sys.executable, "-c", code, str(argument)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


class OfUser(Daemon):
    """A daemon of a user without rights, closed to others of that user, as it is by default."""

    def command(self, *options: str) -> list[str]:
        return [*as_user(USER), *super().command(*options)]

    def try_start(self, *options: str) -> str:
        """Start one that is refused, and return what it said."""
        self.start("--budget", "16MiB", *options, wait=False, env={"WARMSHELF_TRACEABLE": "false"})
        assert self.wait() == 1
        text = self.log.read_text()
        assert "Traceback" not in text, text
        return text


@pytest.fixture
def of_user() -> Iterator[Callable[[], OfUser]]:
    """Makes daemons of one user, with places of their own."""
    with ExitStack() as places:

        def make() -> OfUser:
            root = places.enter_context(tempfile.TemporaryDirectory(prefix="warmshelf-user-"))
            arena = places.enter_context(tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm"))
            if IS_ROOT:
                for place in (root, arena):
                    os.chown(place, USER, USER)
            return OfUser(Path(root), Path(arena), Path(root))

        yield make


def test_a_second_daemon_of_the_same_user_is_told_which_process_has_its_ports(
    of_user: Callable[[], OfUser],
) -> None:
    first, second = of_user(), of_user()
    first.start("--budget", "16MiB", *HTTP, env={"WARMSHELF_TRACEABLE": "false"})
    try:
        assert "PermissionError" in said(SEEN, f"/proc/{first.pid}/fd")
        second.tcp_address = first.tcp_address
        named = f"process {first.pid} ({os.path.basename(sys.executable)} -m warmshelfd)"
        assert f"cannot listen on {first.tcp_address}: {named} does" in second.try_start()
        second.tcp_address = "127.0.0.1:0"
        http = first.ready_line.split("http=")[1].split()[0]
        assert f"cannot serve HTTP on {http}: {named} listens there" in second.try_start("--http", http)
    finally:
        assert first.kill(signal.SIGTERM) == 0
    first.check()


@pytest.mark.skipif(not IS_ROOT, reason="only root has other users: run it with sudo, as CI does")
def test_of_another_users_process_that_cannot_be_seen_the_user_is_told(of_user: Callable[[], OfUser]) -> None:
    other = Worker(LISTENS, prefix=as_user(OTHER_USER))
    try:
        daemon = of_user()
        daemon.tcp_address = f"127.0.0.1:{other.line()}"
        text = daemon.try_start()
        assert f"a process of user {OTHER_USER} that cannot be seen from here does" in text
    finally:
        other.end()


SIGNED = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sign:
    sign.bind("\\0warmshelf/socket/" + sys.argv[1])
    sign.listen()
    print("signed", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root has other users: run it with sudo, as CI does")
def test_a_sign_that_another_user_has_put_up_names_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        liar = Worker(SIGNED, str(os.fstat(server.fileno()).st_ino), prefix=as_user(OTHER_USER))
        try:
            assert liar.line() == "signed"
            assert put_up_signs(port) == []  # the name is taken, and that is all
            assert said(ASKED, port).startswith("0 a process of user 0 that cannot be seen")
        finally:
            liar.end()
        signs = put_up_signs(port)
        assert said(ASKED, port).startswith(f"{os.getpid()} process {os.getpid()} (")
        for sign in signs:
            sign.close()
        assert said(ASKED, port).startswith("0 a process of user 0 that cannot be seen")


def test_a_port_that_nobody_listens_on_is_nobodys() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert put_up_signs(port) == []
        assert port_holder(port)[0] == 0

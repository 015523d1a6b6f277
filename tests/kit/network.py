"""Nodes in network namespaces of their own, on one bridge, whose cables can be pulled.

Needs root and ``ip`` of iproute2, and says so where one of them is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest


class Network:
    """A bridge of this machine, at ``host``, and the namespaces on it."""

    def __init__(self) -> None:
        number = os.getpid()
        self.name = f"ws{number % 100_000}"
        self._prefix = f"10.{64 + number % 128}.{number // 128 % 250}"
        self.host = f"{self._prefix}.1"
        self.networks = f"{self._prefix}.0/24"
        self._names: list[str] = []

    def open(self) -> None:
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{self.host}/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def close(self) -> None:
        for name in self._names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)  # and its cable with it
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self.name)

    def join(self) -> tuple[str, str]:
        """Make a namespace; return its name, and the address that it has on the bridge."""
        number = len(self._names) + 2
        name, outer, inner = f"{self.name}n{number}", f"{self.name}o{number}", f"{self.name}i{number}"
        _ip("netns", "add", name)
        self._names.append(name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        _ip("link", "set", inner, "netns", name)
        _ip("link", "set", outer, "master", self.name, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self._prefix}.{number}/24", "dev", inner),
            ("link", "set", inner, "up"),
        ):
            _ip("-n", name, *words)
        return name, f"{self._prefix}.{number}"

    def cut(self, name: str) -> None:
        """Pull the cable of a namespace: nothing passes, and nobody is told."""
        _ip("link", "set", name.replace("n", "o"), "nomaster")

    def heal(self, name: str) -> None:
        """Plug it in again."""
        _ip("link", "set", name.replace("n", "o"), "master", self.name)

    def slow(self, name: str, megabits: int) -> None:
        """Let so much pass towards a namespace each second, and as much from it."""
        rate = ("root", "tbf", "rate", f"{megabits}mbit", "burst", "32kbit", "latency", "400ms")
        _run("tc", "qdisc", "add", "dev", name.replace("n", "o"), *rate)
        _run("tc", "-n", name, "qdisc", "add", "dev", name.replace("n", "i"), *rate)

    def lose(self, name: str, share: float) -> None:
        """Drop this share of the packets that come to a namespace, whatever is in them."""
        rule = ("-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")
        _run("ip", "netns", "exec", name, "iptables", *rule)


@contextmanager
def network() -> Iterator[Network]:
    """Make a network; nothing is left of it at the end."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.fail("network namespaces need root and the ip command of iproute2: apt-get install iproute2")
    it = Network()
    try:
        it.open()
        yield it
    finally:
        it.close()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)

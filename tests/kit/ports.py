"""TCP ports for servers that must find theirs free again when they are started anew.

The kernel gives none of them away: a port that it chose itself it may give to somebody's connection while
its server is down.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_TRIES = 1000


def free_port() -> int:
    """Return a port on which nobody listens, from below those that the kernel chooses from."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - 1
    if highest < 2 * _LOWEST:  # a host that gives away nearly all there are
        with socket.create_server(("127.0.0.1", 0)) as chosen:
            return int(chosen.getsockname()[1])
    chance = random.SystemRandom()  # tests may seed the usual one
    for _ in range(_TRIES):
        port = chance.randint(_LOWEST, highest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {_LOWEST} to {highest} is free")

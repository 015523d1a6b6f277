"""Many nodes of one registry: what they do to the server when it comes back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kit.processes import eventually
from kit.redis_server import RedisServer, redis_server
from warmshelf.types import Alias, AliasMove
from warmshelfd.registry.redis_link import Link
from warmshelfd.registry.redis_place import parse_place
from warmshelfd.registry.redis_store import REGISTRATIONS
from warmshelfd.registry.redis_sync import Ears, RedisSync

NODE_COUNT = 200
AWAY_SECONDS = 6.0
WINDOW_SECONDS = 0.5
PEAK_RATIO_MAX = 3.0


class LightNode:
    """The part of a node that talks to Redis, and when it has tried to."""

    def __init__(self, server: RedisServer) -> None:
        self.is_up = False
        self.tries: list[float] = []
        self.heard: set[str] = set()
        link = Link(parse_place(server.uri()), lambda: ("", b""), None, REGISTRATIONS)
        ears = Ears(
            found=lambda found: self.heard.update(shared.artifact_id for shared in found),
            older=lambda found, is_behind: None,
            missing=lambda ids: None,
            up=self._came,
            failed=lambda _: self.tries.append(time.monotonic()),
            newest=lambda: 0,
            known=dict,
        )
        self.sync = RedisSync(link, ears, lambda: None)
        self.sync.start()

    def _came(self, is_up: bool) -> None:
        if is_up and not self.is_up:
            self.tries.append(time.monotonic())
        self.is_up = is_up


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as one:
        yield one


def test_two_hundred_nodes_come_back_spread_over_time_and_all_hear_what_comes(server: RedisServer) -> None:
    """R12, B39: no herd, though all lost the server in the same moment."""
    with ExitStack() as stack:
        nodes = [LightNode(server) for _ in range(NODE_COUNT)]
        for node in nodes:
            stack.callback(node.sync.stop)
        eventually(lambda: all(node.is_up for node in nodes), "all are up", 30)
        for node in nodes:
            node.tries.clear()
        server.stop()
        lost = time.monotonic()
        eventually(lambda: time.monotonic() - lost > AWAY_SECONDS, "the server was away for a while", AWAY_SECONDS + 5)
        assert not any(node.is_up for node in nodes)
        server.start()
        back = time.monotonic()
        eventually(lambda: all(node.is_up for node in nodes), "all are up again", 15)
        print(f"all {NODE_COUNT} are back {time.monotonic() - back:.1f} s after the server")
        tries = [moment for node in nodes for moment in node.tries if lost + 1 < moment < back]
        per_window = Counter(int((moment - lost - 1) / WINDOW_SECONDS) for moment in tries)
        mean = len(tries) / ((back - lost - 1) / WINDOW_SECONDS)
        print(f"{len(tries)} tries, at most {max(per_window.values())} in {WINDOW_SECONDS} s, {mean:.0f} on average")
        assert max(per_window.values()) <= PEAK_RATIO_MAX * mean
        move = AliasMove("acme/base", datetime.now(timezone.utc))
        assert nodes[0].sync.swap_alias("prod/base", None, Alias("prod/base", (move,))).result(10)
        eventually(lambda: all(node.heard for node in nodes), "all hear of a change", 15)

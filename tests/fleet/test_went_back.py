"""A store that went back in time where only a node that was away knew what came later: it comes back and says so."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from kit.fleet import Fleet, LightNode, Node
from kit.models import write_model
from kit.processes import eventually
from kit.scrape import HTTP, pages_of
from warmshelf.types import Artifact, SyncState

COUNTED = 'warmshelf_fleet_failures_total{reason="went_back"}'


def node_of(fleet: Fleet) -> Node:
    node = fleet.node(begin=False, kind=LightNode)
    node.options += HTTP
    return node.begin()


def saved(fleet: Fleet) -> Mapping[str, bytes]:
    with fleet.server.client() as client:
        return {key: client.dump(key) for key in client.scan_iter()}


def restore(fleet: Fleet, backup: Mapping[str, bytes]) -> None:
    with fleet.server.client() as client:
        client.flushall()
        for key, value in backup.items():
            client.restore(key, 0, value)


def known(node: Node) -> Artifact:
    with node.connect() as shelf:
        return shelf.get("acme/base")


@pytest.fixture
def sources(fleet: Fleet) -> list[str]:
    paths = [fleet.models / f"{tag}.safetensors" for tag in range(2)]
    for tag, path in enumerate(paths):
        write_model(path, tag, size=4096)
    return [f"file://{path}" for path in paths]


def what_only_one_node_knows(fleet: Fleet, sources: list[str]) -> tuple[Node, Node]:
    """Return a node that does not know of a replacement and runs, and one that does and is away; nor does the store."""
    stays, away = node_of(fleet), node_of(fleet)
    with stays.connect() as shelf:
        shelf.register("acme/base", source=sources[0])
    fleet.agree("acme/base")
    stays.kill(signal.SIGTERM)
    backup = saved(fleet)
    with away.connect() as shelf:
        shelf.register("acme/base", source=sources[1], replace=True)
        shelf.acquire("acme/base").release()
        eventually(lambda: shelf.get("acme/base").digest != "", "its digest is known")
    fleet.agree("acme/base")
    away.kill(signal.SIGTERM)
    restore(fleet, backup)
    stays.begin()
    fleet.agree("acme/base")
    assert known(stays).spec.source.uri == sources[0]
    return stays, away


def test_what_it_knew_later_is_written_again_if_nobody_has_gone_on_since(fleet: Fleet, sources: list[str]) -> None:
    """R4."""
    stays, away = what_only_one_node_knows(fleet, sources)
    away.begin()
    eventually(lambda: known(stays).spec.source.uri == sources[1], "the later one holds everywhere", 15)
    fleet.agree("acme/base")
    assert known(away).spec.source.uri == sources[1]
    assert known(stays).digest == known(away).digest != ""
    assert pages_of(away).scrape()[COUNTED] > 0
    assert away.log.read_text().count("went back in time") == 1
    assert "those of this node are written again" in away.log.read_text()
    assert pages_of(stays).scrape()[COUNTED] == 0


def test_the_stores_holds_if_it_has_gone_on_since_and_the_node_says_what_it_knew(
    fleet: Fleet, sources: list[str]
) -> None:
    """R4: what the store has may be what somebody wanted after it went back."""
    stays, away = what_only_one_node_knows(fleet, sources)
    with stays.connect() as shelf:
        for number in range(20):
            shelf.register(f"acme/later-{number}", source=sources[0])
    eventually(lambda: stays.knows("acme/later-19"), "it has gone on beyond what the other node knows")
    away.begin()
    eventually(lambda: away.sync_of("acme/base") is SyncState.CONFLICT, "it is told", 15)
    told = known(away)
    assert told.spec.source.uri == sources[0]
    assert told.sync is not None
    assert "went back in time" in told.sync.reason
    assert pages_of(away).scrape()[COUNTED] > 0
    assert "they hold, for it has gone on since" in away.log.read_text()
    assert known(stays).spec.source.uri == sources[0]
    with away.connect() as shelf:  # whoever means the later one says so, and it is everybody's again
        shelf.register("acme/base", source=sources[1], replace=True)
    fleet.agree("acme/base")
    eventually(lambda: known(stays).spec.source.uri == sources[1], "it is everybody's again")

"""Redis away, hung, emptied, full or refusing: nodes serve what they know, and agree again afterwards."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

import warmshelf
from kit.fleet import Fleet, Node
from kit.models import write_model
from kit.processes import eventually
from kit.redis_faults import Closes, Drips, FaultyServer, Floods, Says, Silent
from kit.scrape import HTTP, pages_of
from warmshelf.types import SyncState

ACQUIRES = 200


def model_in(fleet: Fleet) -> str:
    path = fleet.models / "base.safetensors"
    write_model(path, tag=1, size=4096)
    return str(path)


def with_pages(node: Node) -> Node:
    node.options += HTTP
    return node.begin()


def acquire_seconds(shelf: warmshelf.Shelf, artifact_id: str) -> list[float]:
    """Return how long each of many acquires took, all of which succeeded."""
    took = []
    for _ in range(ACQUIRES):
        began = time.perf_counter()
        with shelf.acquire(artifact_id):
            took.append(time.perf_counter() - began)
    return took


def test_a_node_starts_registers_and_acquires_without_redis_and_tells_the_others_later(fleet: Fleet) -> None:
    """R1."""
    model = model_in(fleet)
    fleet.server.stop()
    node = with_pages(fleet.node(begin=False))
    pages = pages_of(node)
    with node.connect() as shelf:
        shelf.register("acme/base", source=model)
        with shelf.acquire("acme/base") as lease:
            assert len(lease) == 4
        artifact = shelf.get("acme/base")
        assert artifact.sync is not None
        assert artifact.sync.state is SyncState.QUEUED
        assert pages.scrape()["warmshelf_fleet_degraded"] == 1
        node.kill()
        node.begin()  # what is queued survives
        fleet.server.start()
        other = fleet.node()
        fleet.agree("acme/base")
        assert other.sync_of("acme/base") is SyncState.PUBLISHED
    scrape = pages_of(node).scrape()
    assert scrape["warmshelf_fleet_degraded"] == 0
    assert node.log.read_text().count("goes on with what it knows") <= 2  # once for each life


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_acquires_are_as_quick_while_redis_is(fleet: Fleet, fault: str) -> None:
    """R2, R3, B58: every acquire succeeds; what is registered meanwhile is known to all soon after."""
    model = model_in(fleet)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here:
        here.register("acme/base", source=model)
        fleet.agree("acme/base")
        healthy = acquire_seconds(here, "acme/base")
        (fleet.server.stop if fault == "killed" else fleet.server.pause)()
        broken = acquire_seconds(here, "acme/base")
        began = time.monotonic()
        here.register("acme/late", source=model)
        assert time.monotonic() - began < 2
        assert a.sync_of("acme/late") is SyncState.QUEUED
        with here.acquire("acme/late"):
            pass
        (fleet.server.start if fault == "killed" else fleet.server.resume)()
        fleet.agree("acme/base", "acme/late")
    assert b.knows("acme/base", "acme/late")
    healthy_ms, broken_ms = (statistics.median(seconds) * 1000 for seconds in (healthy, broken))
    print(f"acquire, median: {healthy_ms:.2f} ms healthy, {broken_ms:.2f} ms with Redis {fault}")
    assert broken_ms < 2 * healthy_ms + 2


def test_an_emptied_redis_is_filled_again_by_any_node(fleet: Fleet) -> None:
    """R5, R13: all of it, the hash alone, the stream alone; nothing is lost and later changes arrive."""
    model = model_in(fleet)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, fleet.server.client() as client:
        ids = [f"acme/{number}" for number in range(20)]
        for artifact_id in ids:
            here.register(artifact_id, source=model)
        fleet.agree(*ids)
        for turn, wipe in enumerate(
            (["FLUSHALL"], ["DEL", "{warmshelf}:registrations"], ["DEL", "{warmshelf}:changes"])
        ):
            client.execute_command(*wipe)
            eventually(lambda: client.hlen("{warmshelf}:registrations") >= 21, "the registry is filled again", 8)
            here.register(f"later/{turn}", source=model)
            ids.append(f"later/{turn}")
            fleet.agree(*ids)
    assert b.knows(*ids)
    c = fleet.node()
    fleet.agree(*ids)
    assert c.knows(*ids)


def test_a_redis_that_went_back_in_time_is_brought_forward(fleet: Fleet, tmp_path: Path) -> None:
    """R4: the last writes are gone; whoever made or knew of them writes them again."""
    model = model_in(fleet)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, fleet.server.client() as client:
        here.register("acme/old", source=model)
        fleet.agree("acme/old")
        kept = {key: client.dump(key) for key in client.scan_iter()}
        here.register("acme/new", source=model)
        fleet.agree("acme/old", "acme/new")
        for key, value in kept.items():
            client.restore(key, 0, value, replace=True)  # type: ignore[arg-type]
        eventually(lambda: bool(client.hexists("{warmshelf}:registrations", "acme/new")), "it is written again", 8)
        fleet.agree("acme/old", "acme/new")
    assert b.knows("acme/old", "acme/new")


def test_a_full_redis_queues_changes_and_is_still_followed(fleet: Fleet) -> None:
    """R7: OOM."""
    model = model_in(fleet)
    node = with_pages(fleet.node(begin=False))
    with node.connect() as shelf, fleet.server.client() as client:
        eventually(lambda: client.hlen("{warmshelf}:registrations") == 1, "the node has come")
        client.config_set("maxmemory", "1")
        shelf.register("acme/base", source=model)
        assert node.sync_of("acme/base") is SyncState.QUEUED
        with shelf.acquire("acme/base"):
            pass
        pages = pages_of(node)
        eventually(lambda: pages.scrape()['warmshelf_fleet_failures_total{reason="oom"}'] > 0, "it is counted")
        client.config_set("maxmemory", "0")
        fleet.agree("acme/base")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Silent, id="says nothing"),
        pytest.param(Closes, id="closes"),
        pytest.param(Drips, id="drips"),
        pytest.param(Floods, id="floods"),
        *(
            pytest.param(lambda code=code: Says(b"-%b no\r\n" % code * 9), id=code.decode())
            for code in (b"LOADING", b"NOAUTH", b"READONLY", b"MOVED", b"BUSY", b"MISCONF")
        ),
    ],
)
def test_a_node_lives_with_a_server_that(fleet: Fleet, make: type[FaultyServer]) -> None:
    """R6, R7."""
    model = model_in(fleet)
    with make() as faulty:
        node = with_pages(fleet.node(f"redis://127.0.0.1:{faulty.port}/0", begin=False))
        with node.connect() as shelf:
            shelf.register("acme/base", source=model)
            with shelf.acquire("acme/base"):
                pass
        pages = pages_of(node)
        eventually(lambda: _failures(pages.text()) > 0, "the failure is counted")
        assert node.sync_of("acme/base") is SyncState.QUEUED
        text = node.log.read_text()
        assert text.count("goes on with what it knows") == 1, text


def _failures(text: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith("warmshelf_fleet_failures_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_two_nodes_that_register_an_id_offline_agree_on_one_and_the_other_says_why(fleet: Fleet) -> None:
    sources = [fleet.models / "one.safetensors", fleet.models / "two.safetensors"]
    for tag, path in enumerate(sources):
        write_model(path, tag, size=4096)
    fleet.server.stop()
    nodes = [fleet.node(), fleet.node()]
    for node, path in zip(nodes, sources, strict=True):
        with node.connect() as shelf:
            shelf.register("acme/base", source=str(path))
    fleet.server.start()
    wanted = {SyncState.PUBLISHED, SyncState.CONFLICT}
    eventually(lambda: {node.sync_of("acme/base") for node in nodes} == wanted, "one wins", 15)
    found = []
    for node in nodes:
        with node.connect() as shelf:
            found.append(shelf.get("acme/base"))
    assert found[0].spec == found[1].spec
    (loser,) = (artifact for artifact in found if artifact.sync and artifact.sync.state is SyncState.CONFLICT)
    assert loser.sync is not None
    assert "other nodes have it with another source.uri" in loser.sync.reason


def test_poisoned_records_are_left_out_and_counted(fleet: Fleet) -> None:
    """R8."""
    model = model_in(fleet)
    node = with_pages(fleet.node(begin=False))
    with node.connect() as shelf, fleet.server.client() as client:
        shelf.register("acme/base", source=model)
        fleet.agree("acme/base")
        good = client.hget("{warmshelf}:registrations", "acme/base")
        assert isinstance(good, bytes)
        poison = {
            "../etc/passwd": good,
            "acme/other": good,
            "not utf-8 \xff": b"\xff\xfe",
            "acme/deep": b"1 kept " + b"[" * 60_000,
            "acme/huge": b"1 kept " + bytes(64 << 20),
            "acme/bomb": b"99 kept " + _bomb(),
            "acme/empty": b"",
            "x" * 100_000: good,
            "acme/number": b"1" * 40 + b" kept x",
        }
        client.hset("{warmshelf}:registrations", mapping=poison)  # type: ignore[arg-type]
        for number, field in enumerate(poison):
            client.xadd("{warmshelf}:changes", {"id": field}, id=f"{2**62 + number}-0")
        client.xadd("{warmshelf}:changes", {"junk": "x" * 1_000_000}, id=f"{2**63}-7")
        pages = pages_of(node)
        name = 'warmshelf_fleet_failures_total{reason="bad_record"}'
        eventually(lambda: pages.scrape()[name] >= len(poison), "they are counted")
        shelf.register("acme/after", source=model)  # the stream's numbers were used up: it begins anew
        other = fleet.node()
        fleet.agree("acme/base", "acme/after")
        with other.connect() as there:
            assert [artifact.artifact_id for artifact in there.list()] == ["acme/after", "acme/base"]


def _bomb() -> bytes:
    import zlib  # noqa: PLC0415

    return zlib.compress(bytes(512 << 20), 9)


def test_keys_of_the_wrong_type_stop_the_sharing_and_nothing_else(fleet: Fleet) -> None:
    """R8."""
    model = model_in(fleet)
    with fleet.server.client() as client:
        client.set("{warmshelf}:registrations", "x")
        node = with_pages(fleet.node(begin=False))
        pages = pages_of(node)
        eventually(lambda: pages.scrape()['warmshelf_fleet_failures_total{reason="wrongtype"}'] > 0, "it is counted")
        with node.connect() as shelf:
            shelf.register("acme/base", source=model)
            with shelf.acquire("acme/base"):
                pass
        client.delete("{warmshelf}:registrations")
        fleet.agree("acme/base")


def test_an_idle_node_asks_less_than_once_a_second(fleet: Fleet) -> None:
    fleet.node()
    with fleet.server.client() as client:
        eventually(lambda: client.hlen("{warmshelf}:registrations") == 1, "the node has come")
        eventually(lambda: client.scard("{warmshelf}:nodes") == 1, "it has told what it has")
        before, began = _commands(client), time.monotonic()
        eventually(lambda: time.monotonic() - began > 7, "some seconds have passed", 9)
        assert _commands(client) - before <= 7


def _commands(client: object) -> int:
    stats: dict[str, dict[str, int]] = client.info("commandstats")  # type: ignore[attr-defined]
    return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_hlen"))

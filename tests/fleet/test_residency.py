"""Every node tells the others what it has resident, and says so to whoever asks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
import redis

import warmshelf
from kit.fleet import Fleet, Node
from kit.models import write_model
from kit.poison import POISON
from kit.processes import eventually
from kit.scrape import HTTP, pages_of
from warmshelf.errors import ArtifactNotFound, InvalidId, InvalidPageToken
from warmshelf.v1 import residency_pb2
from warmshelfd.registry.residents import LIFE_SECONDS

IDLE_SECONDS = 7.0


def node_of(fleet: Fleet, name: str, *options: str) -> Node:
    node = fleet.node(begin=False)
    node.options += ("--node-name", name, "--advertise", "127.0.0.1", *options)
    return node.begin()


def model_in(fleet: Fleet) -> str:
    path = fleet.models / "base.safetensors"
    write_model(path, tag=1, size=4096)
    return str(path)


def names_of(shelf: warmshelf.Shelf, artifact_id: str) -> list[str]:
    return [one.node.name for one in shelf.where(artifact_id)]


def test_every_node_says_where_an_artifact_is_resident_and_no_longer_once_it_is_not(fleet: Fleet) -> None:
    model = model_in(fleet)
    a, b = node_of(fleet, "a", "--node-zone", "here"), node_of(fleet, "b")
    with a.connect() as here, b.connect() as there:
        here.register("acme/base", source=model, keep=True)
        fleet.agree("acme/base")
        assert there.where("acme/base") == []
        with here.acquire("acme/base"):
            eventually(lambda: names_of(there, "acme/base") == ["a"], "the other node says where it is")
        eventually(lambda: there.where("acme/base")[0].digest != "", "its digest is told once it is known")
        (told,) = there.where("acme/base")
        artifact = here.get("acme/base")
        assert (told.digest, told.size_bytes, told.pinned) == (artifact.digest, artifact.size_bytes, artifact.pinned)
        assert (told.keep_resident, told.node.zone, told.node.address) == (True, "here", a.tcp_address)
        assert told == here.where("acme/base")[0]
        with there.acquire("acme/base"):
            assert names_of(there, "acme/base") == ["b", "a"]  # who is asked comes first
        found = there.list_residency()
        assert [node.name for node in found.nodes] == ["b", "a"]
        assert not found.partial
        here.evict("acme/base")
        eventually(lambda: names_of(there, "acme/base") == ["b"], "it is told that it was evicted")


def test_an_alias_is_asked_for_as_what_it_means(fleet: Fleet) -> None:
    model = model_in(fleet)
    a = node_of(fleet, "a")
    with a.connect() as shelf:
        shelf.register("acme/base@v1", source=model)
        shelf.set_alias("prod/base", "acme/base@v1")
        with shelf.acquire("prod/base"):
            assert [one.artifact_id for one in shelf.where("prod/base")] == ["acme/base@v1"]
        with pytest.raises(InvalidId):
            shelf.where("no id")
        with pytest.raises(ArtifactNotFound):
            shelf.where("acme/unknown")
        shelf.evict("acme/base@v1")
        assert shelf.where("prod/base") == []  # known, and resident nowhere
    words = (sys.executable, "-m", "warmshelf.cli", "--address", a.address, "where", "acme/unknown")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ARTIFACT_NOT_FOUND" in done.stderr


def test_a_listing_comes_in_pages_and_without_a_gap(fleet: Fleet) -> None:
    model = model_in(fleet)
    a, b = node_of(fleet, "a"), node_of(fleet, "b")
    ids = [f"acme/{number}" for number in range(5)]
    with a.connect() as here, b.connect() as there:
        for artifact_id in ids:
            here.register(artifact_id, source=model)
        fleet.agree(*ids)
        for shelf in (here, there):
            for artifact_id in ids:
                shelf.acquire(artifact_id).release()
        eventually(lambda: len(here.list_residency().residents) == 10, "both nodes tell of all")
        connection = here._current().connection
        token, seen = "", []
        while True:
            request = residency_pb2.ListResidencyRequest(page_size=3, page_token=token)
            answer = connection.residency.ListResidency(request)
            seen += [(one.node_id, one.artifact_id) for one in answer.residents]
            if not (token := answer.next_page_token):
                break
        nodes = [node.node_id for node in answer.nodes]
        assert seen == [(node_id, artifact_id) for node_id in nodes for artifact_id in ids]
        with pytest.raises(InvalidPageToken):
            connection.once(
                lambda: connection.residency.ListResidency(residency_pb2.ListResidencyRequest(page_token="AAAA"))
            )


def test_a_dead_node_is_forgotten_and_one_that_stops_takes_its_word_back(fleet: Fleet) -> None:
    """R9."""
    model = model_in(fleet)
    a, b, c = node_of(fleet, "a"), node_of(fleet, "b"), node_of(fleet, "c")
    with a.connect() as here, b.connect() as there, c.connect() as third:
        here.register("acme/base", source=model)
        fleet.agree("acme/base")
        for shelf in (here, there, third):
            shelf.acquire("acme/base").release()
        eventually(lambda: set(names_of(here, "acme/base")) == {"a", "b", "c"}, "all are told")
        b.kill(signal.SIGTERM)
        eventually(lambda: set(names_of(here, "acme/base")) == {"a", "c"}, "who stops says so", seconds=3)
        c.kill()
        with redis.Redis(port=fleet.server.port) as client:  # no test waits for as long as it lives
            (key,) = [key for key in client.keys("{warmshelf}:node:*") if client.ttl(key) > 0 and not _is_of(key, here)]
            assert 0 < client.ttl(key) <= LIFE_SECONDS
            client.expire(key, 0)
        eventually(lambda: names_of(here, "acme/base") == ["a"], "who is dead is forgotten", seconds=3)


def _is_of(key: bytes, shelf: warmshelf.Shelf) -> bool:
    return key.decode().endswith(shelf.list_residency().nodes[0].node_id)


def test_what_was_told_is_told_again_after_redis_was_emptied_and_nobody_waits_while_it_is_away(fleet: Fleet) -> None:
    """R2, R5."""
    model = model_in(fleet)
    a, b = node_of(fleet, "a"), node_of(fleet, "b")
    with a.connect() as here, b.connect() as there:
        here.register("acme/base", source=model)
        fleet.agree("acme/base")
        here.acquire("acme/base").release()
        eventually(lambda: names_of(there, "acme/base") == ["a"], "it is told")
        with redis.Redis(port=fleet.server.port) as client:
            client.flushall()
        eventually(lambda: names_of(there, "acme/base") == [], "it is lost")
        eventually(lambda: names_of(there, "acme/base") == ["a"], "it is told again", seconds=15)
        fleet.server.stop()
        began = time.monotonic()
        found = there.list_residency()
        assert time.monotonic() - began < 3
        there.acquire("acme/base").release()
        assert names_of(there, "acme/base")[0] == "b"  # its own it always knows
        eventually(lambda: there.list_residency().partial, "it says that others may have more")
        assert len(found.nodes) <= 2


def test_poisoned_records_are_ignored_and_counted(fleet: Fleet) -> None:
    """R8."""
    model = model_in(fleet)
    a, b = node_of(fleet, "a", *HTTP), node_of(fleet, "b")
    with a.connect() as here, b.connect() as there, redis.Redis(port=fleet.server.port) as client:
        there.register("acme/base", source=model)
        there.acquire("acme/base").release()
        for number, value in enumerate(POISON):
            client.set("{warmshelf}:node:" + f"{number:016x}", value)
            client.sadd("{warmshelf}:nodes", f"{number:016x}")
        client.rpush("{warmshelf}:node:" + "f" * 16, "a list")
        client.sadd("{warmshelf}:nodes", "f" * 16, "../../x", b"\xff" * 100)
        eventually(lambda: names_of(here, "acme/base") == ["b"], "the good records are read")
        assert {node.name for node in here.list_residency().nodes} == {"a", "b"}
        bad_count = pages_of(a).scrape()['warmshelf_fleet_failures_total{reason="bad_record"}']
        assert bad_count >= len(POISON) + 3
        client.delete("{warmshelf}:nodes")
        client.set("{warmshelf}:nodes", "no set")
        assert here.where("acme/base") is not None  # whatever is known


def test_more_than_may_be_told_is_cut_and_said(fleet: Fleet) -> None:
    lines = "".join(f"\nacme/{number:05} - 1 -" for number in range(10_000))
    a = node_of(fleet, "a")
    with a.connect() as here, redis.Redis(port=fleet.server.port) as client:
        client.set("{warmshelf}:node:" + "e" * 16, b"a-1 " + zlib.compress(f"big - - cut{lines}".encode()))
        client.sadd("{warmshelf}:nodes", "e" * 16)
        eventually(lambda: len(here.list_residency().residents) == 10_000, "all that is told is listed")
        assert here.list_residency().partial
        assert [one.node.name for one in here.where("acme/09999")] == ["big"]


def test_the_command_prints_a_table_or_json(fleet: Fleet) -> None:
    model = model_in(fleet)
    a = node_of(fleet, "a")
    with a.connect() as here:
        here.register("acme/base", source=model)
        here.acquire("acme/base").release()
    run = [sys.executable, "-m", "warmshelf.cli", "--address", a.address]
    printed = subprocess.run([*run, "where", "acme/base"], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[0].split() == [
        "ID",
        "NODE",
        "ZONE",
        "ADDRESS",
        "STATE",
        "SIZE",
        "PINNED",
        "KEPT",
        "DIGEST",
    ]
    assert "acme/base" in printed
    answer = subprocess.run([*run, "--output", "json", "where"], capture_output=True, text=True, check=True).stdout
    (resident,) = json.loads(answer)["residents"]
    assert (resident["artifact_id"], json.loads(answer)["nodes"][0]["address"]) == ("acme/base", a.tcp_address)


def test_an_idle_node_sends_less_than_a_command_each_second(fleet: Fleet) -> None:
    node_of(fleet, "a")
    with redis.Redis(port=fleet.server.port) as client:

        def commands() -> int:
            stats = client.info("commandstats")
            return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_client"))

        eventually(lambda: client.scard("{warmshelf}:nodes") == 1, "the node has told")
        before, began = commands(), time.monotonic()
        eventually(lambda: time.monotonic() - began > IDLE_SECONDS, "a while has passed")
        rate = (commands() - before) / (time.monotonic() - began)
        print(f"{rate:.2f} commands/s")
        assert 0 < rate <= 1.3  # over so short a time; over minutes it is 0.75


def test_a_daemon_alone_says_what_it_has(tmp_path: Path, fleet: Fleet) -> None:
    model = model_in(fleet)
    alone = fleet.node(f"sqlite://{tmp_path}/registry.sqlite")
    with alone.connect() as shelf:
        shelf.register("acme/base", source=model)
        shelf.acquire("acme/base").release()
        found = shelf.list_residency("acme/base")
        assert [one.artifact_id for one in found.residents] == ["acme/base"]
        assert not found.partial
        assert found.nodes[0].address == ""

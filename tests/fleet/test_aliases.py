"""Aliases: moved by comparing and swapping, resolved at acquire, the same on every node."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmshelf
from kit.fleet import Fleet, fleet_on
from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from kit.redis_server import RedisServer
from warmshelf.errors import AliasMoved, ArtifactNotFound, InvalidSpec, RegistryUnavailable
from warmshelf.types import ChangeKind

Contents = dict[str, dict[str, bytes]]


@pytest.fixture
def alone(tmp_path: Path, server: RedisServer) -> Iterator[Daemon]:
    """A daemon with a registry in a file."""
    with fleet_on(server, tmp_path) as fleet:
        node = fleet.node(f"sqlite://{tmp_path}/registry.sqlite")
        yield node


def register_two(shelf: warmshelf.Shelf, models: Path) -> Contents:
    contents = {}
    for tag in (6, 7):
        path = models / f"{tag}.safetensors"
        contents[f"acme/support@v{tag}"] = write_model(path, tag, size=4096)
        shelf.register(f"acme/support@v{tag}", source=str(path))
    return contents


def test_an_alias_moves_and_holders_keep_theirs_and_are_told(alone: Daemon) -> None:
    with alone.connect() as shelf, shelf.watch() as watch:
        assert next(watch).kind is ChangeKind.COMPLETE
        contents = register_two(shelf, alone.models)
        shelf.set_alias("prod/support", "acme/support@v6")
        with shelf.acquire("prod/support") as old:
            assert old.artifact.artifact_id == "acme/support@v6"
            shelf.set_alias("prod/support", "acme/support@v7", expect="acme/support@v6")
            eventually(lambda: old.superseded, "the holder is told")
            with shelf.acquire("prod/support") as new:
                assert read_all(new) == contents["acme/support@v7"]
                assert not new.superseded
            assert read_all(old) == contents["acme/support@v6"]
        back = shelf.roll_back_alias("prod/support")
        assert [move.artifact_id[-2:] for move in back.history] == ["v6", "v7", "v6"]
        told = 0
        while told < 3:
            change = next(watch)
            if change.kind is ChangeKind.ALIAS:
                told += 1
                assert change.alias is not None
                assert change.alias.name == "prod/support"
    alone.kill()
    alone.begin()  # type: ignore[attr-defined]
    with alone.connect() as shelf:
        assert shelf.aliases() == [back]
        with shelf.acquire("prod/support") as lease:
            assert lease.artifact.artifact_id == "acme/support@v6"


def test_a_wrong_expectation_and_an_unknown_artifact_are_refused(alone: Daemon) -> None:
    with alone.connect() as shelf:
        register_two(shelf, alone.models)
        with pytest.raises(AliasMoved, match="means nothing"):
            shelf.set_alias("prod", "acme/support@v6", expect="acme/support@v7")
        shelf.set_alias("prod", "acme/support@v6")
        with pytest.raises(AliasMoved, match="not nothing"):
            shelf.set_alias("prod", "acme/support@v7")
        with pytest.raises(ArtifactNotFound):
            shelf.set_alias("prod", "acme/unknown", expect="acme/support@v6")
        with pytest.raises(InvalidSpec):
            shelf.set_alias("acme/support@v6", "acme/support@v7")
        with pytest.raises(ArtifactNotFound):
            shelf.roll_back_alias("prod")
        with pytest.raises(ArtifactNotFound):
            shelf.roll_back_alias("unknown")


def test_the_command_sets_lists_and_rolls_back(alone: Daemon) -> None:
    def command(*words: str) -> str:
        words = (sys.executable, "-m", "warmshelf.cli", "--address", alone.address, "alias", *words)
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    with alone.connect() as shelf:
        register_two(shelf, alone.models)
    command("set", "prod/support", "acme/support@v6")
    command("set", "prod/support", "acme/support@v7", "--expect", "acme/support@v6")
    assert "acme/support@v7" in command("list")
    assert command("history", "prod/support").count("acme/support@v") == 2
    assert "acme/support@v6" in command("rollback", "prod/support")
    command("remove", "prod/support", "--expect", "acme/support@v6")
    assert "prod/support" not in command("list")


def test_of_two_nodes_that_move_an_alias_at_once_one_wins_and_all_agree(fleet: Fleet) -> None:
    nodes = [fleet.node(), fleet.node()]
    with nodes[0].connect() as here, nodes[1].connect() as there:
        register_two(here, fleet.models)
        fleet.agree("acme/support@v6", "acme/support@v7")
        here.set_alias("prod", "acme/support@v6")
        eventually(lambda: bool(there.aliases()), "the alias is known on the other node")

        def move(shelf: warmshelf.Shelf) -> bool:
            before = shelf.aliases()[0].artifact_id
            after = {"acme/support@v6": "acme/support@v7", "acme/support@v7": "acme/support@v6"}[before]
            try:
                shelf.set_alias("prod", after, expect=before)
            except AliasMoved:
                return False
            return True

        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            for _ in range(10):
                eventually(lambda: here.aliases() == there.aliases(), "both know the same")
                assert any(threads.map(move, (here, there)))
        eventually(lambda: here.aliases() == there.aliases(), "both know the same")
        with fleet.server.client() as client:
            client.flushall()
            eventually(
                lambda: bool(client.hexists("{warmshelf}:registrations", "@prod")), "the alias is there again", 8
            )
        c = fleet.node()
        with c.connect() as late:
            eventually(lambda: late.aliases() == here.aliases(), "a new node knows it")
            with late.acquire("prod") as lease:
                assert lease.artifact.artifact_id == here.aliases()[0].artifact_id


def test_no_alias_moves_while_the_shared_registry_is_away_but_it_is_still_resolved(fleet: Fleet) -> None:
    node = fleet.node()
    with node.connect() as shelf:
        register_two(shelf, fleet.models)
        eventually(lambda: node.knows("acme/support@v6"), "Redis is in reach")
        shelf.set_alias("prod", "acme/support@v6")
        fleet.server.stop()
        with pytest.raises(RegistryUnavailable):
            shelf.set_alias("prod", "acme/support@v7", expect="acme/support@v6")
        with shelf.acquire("prod") as lease:
            assert lease.artifact.artifact_id == "acme/support@v6"


def test_a_removed_alias_is_unknown_and_holders_keep_what_it_meant(alone: Daemon) -> None:
    with alone.connect() as shelf, shelf.watch() as watch:
        assert next(watch).kind is ChangeKind.COMPLETE
        contents = register_two(shelf, alone.models)
        shelf.set_alias("prod", "acme/support@v6")
        with shelf.acquire("prod") as lease:
            with pytest.raises(AliasMoved):
                shelf.remove_alias("prod", expect="acme/support@v7")
            shelf.remove_alias("prod", expect="acme/support@v6")
            assert read_all(lease) == contents["acme/support@v6"]
            assert not lease.superseded
        with pytest.raises(ArtifactNotFound):
            shelf.acquire("prod")
        with pytest.raises(ArtifactNotFound):
            shelf.remove_alias("prod")
        change = next(change for change in watch if change.kind is ChangeKind.ALIAS_REMOVED)
        assert change.artifact_id == "prod"
    alone.kill()
    alone.begin()  # type: ignore[attr-defined]
    with alone.connect() as shelf:
        assert shelf.aliases() == []
        shelf.set_alias("prod", "acme/support@v7")  # the name is free
        assert len(shelf.aliases()[0].history) == 1


def test_an_alias_that_was_removed_is_not_brought_back_by_a_node_that_was_away(fleet: Fleet) -> None:
    a, b = fleet.node(), fleet.node()
    with a.connect() as here:
        with b.connect() as there:
            register_two(here, fleet.models)
            fleet.agree("acme/support@v6", "acme/support@v7")
            for name in ("prod", "test"):
                here.set_alias(name, "acme/support@v6")
            eventually(lambda: len(there.aliases()) == 2, "the aliases are known on the other node")
            here.remove_alias("test")
            eventually(lambda: [one.name for one in there.aliases()] == ["prod"], "it is gone on the other node")
        b.kill()
        here.remove_alias("prod")
        b.begin()
        with b.connect() as there:
            eventually(lambda: there.aliases() == [], "who was away hears of it")
            fleet.agree("acme/support@v6")
            assert here.aliases() == []
            there.set_alias("prod", "acme/support@v7")
            eventually(lambda: here.aliases() == there.aliases(), "the name is free everywhere")
        fleet.server.stop()
        with pytest.raises(RegistryUnavailable):
            here.remove_alias("prod")

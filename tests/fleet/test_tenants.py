"""Tenants of nodes that share a registry: what one registers on any node is its own on all, and nobody else's."""

from __future__ import annotations

import pytest
import redis

from fleet.test_neighbours import ALLOWED, node_of, outcome, told_of, write_base
from kit.fleet import Fleet, Node
from kit.processes import eventually, read_all
from warmshelf import Shelf, errors

TENANTS = ("red", "blue")


def _node(fleet: Fleet, name: str, *options: str) -> Node:
    config = fleet.root / f"{name}.toml"
    config.write_text("".join(f'[[tenant]]\nname = "{tenant}"\n' for tenant in TENANTS))
    node = node_of(fleet, name, "--config", str(config), *options)
    node.tenants = TENANTS
    return node


def _knows(shelf: Shelf, artifact_id: str, digest: str) -> bool:
    return (artifact_id, digest) in [(one.artifact_id, one.digest) for one in shelf.list()]


def test_a_tenants_artifacts_are_its_own_on_every_node_and_come_from_its_neighbours(fleet: Fleet) -> None:
    base = write_base(fleet.models / "base")
    a, b = _node(fleet, "a"), _node(fleet, "b", *ALLOWED)
    with a.connect(tenant="red") as red:
        red.register("acme/base", f"file://{base}")
        with red.acquire("acme/base", timeout=20) as lease:
            expected = read_all(lease)
        eventually(lambda: bool(red.get("acme/base").digest), "its digest is known")
        digest = red.get("acme/base").digest
    base.rename(fleet.models / "moved")
    with b.connect(tenant="red") as red, b.connect(tenant="blue") as blue, b.connect() as nobody:
        eventually(lambda: _knows(red, "acme/base", digest), "the other node knows it")
        told_of(red, "acme/base", digest)
        with red.acquire("acme/base", timeout=20) as lease:
            assert read_all(lease) == expected
        assert outcome(b, "ok") == 1
        for other in (blue, nobody):
            assert other.list() == []
            assert other.where("acme/base") == []
            with pytest.raises(errors.ArtifactNotFound):
                other.acquire("acme/base", timeout=5)
    with redis.Redis(fleet.server.host, fleet.server.port) as client:
        assert client.hexists("{warmshelf}:tenant:red:registrations", "acme/base")
        assert not client.hexists("{warmshelf}:tenant:blue:registrations", "acme/base")
        assert not client.hexists("{warmshelf}:registrations", "acme/base")

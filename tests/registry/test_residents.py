"""What a node tells of what it has resident: read back as it was written, cut where it is too much, and distrusted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kit.poison import POISON
from warmshelf.types import Node, Resident
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.residents import (
    RESIDENTS_MAX,
    VALUE_BYTES_MAX,
    NodeResidents,
    from_value,
    revision_of,
    split_address,
    to_value,
)

NODE = Node("0123456789abcdef", "host-1.example", "zone-a", "[fd00::1]:50051")
DIGEST = "blake3:" + "5" * 64


def of_ids(*ids: str) -> list[Resident]:
    return [Resident(NODE, artifact_id, "", 1) for artifact_id in ids]


def read(value: bytes) -> NodeResidents:
    return from_value(NODE.node_id, value)


def test_what_is_told_is_read_back() -> None:
    residents = [
        Resident(NODE, "acme/b", DIGEST, 1 << 40, pinned=True, keep_resident=True),
        Resident(NODE, "acme/a", "", 4096, keep_resident=True),
        Resident(NODE, "Acme/a", DIGEST, 0, pinned=True),
    ]
    value, count = to_value("ab-1", NODE, residents)
    told = read(value)
    assert (revision_of(value), count, told.is_cut, told.node) == ("ab-1", 3, False, NODE)
    assert list(told.after("")) == sorted(residents, key=lambda one: one.artifact_id)
    assert told.find("acme/b") == residents[0]
    assert told.find("acme/") is None
    assert told.find("acme/c") is None
    assert told.with_digest(DIGEST) == residents[2]
    assert told.with_digest("blake3:" + "6" * 64) is None
    assert [one.artifact_id for one in told.after("acme/a")] == ["acme/b"]


def test_a_node_without_address_zone_and_artifacts_is_one() -> None:
    bare = replace(NODE, zone="", address="")
    value, _ = to_value("ab-1", bare, [])
    assert read(value).node == bare
    assert list(read(value).after("")) == []


def test_of_too_many_the_first_are_told() -> None:
    ids = [f"acme/{number}" for number in range(RESIDENTS_MAX + 1)]
    value, count = to_value("ab-1", NODE, of_ids(*ids))
    assert count == RESIDENTS_MAX
    told = read(value)
    assert told.is_cut
    assert told.find(ids[-2])
    assert told.find(ids[-1]) is None


def test_of_ids_that_are_too_long_together_fewer_are_told() -> None:
    chance = random.Random(1)
    ids = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=255))
        for _ in range(8000)
    ]
    value, count = to_value("ab-1", NODE, of_ids(*ids))
    assert len(value) <= VALUE_BYTES_MAX
    assert 1000 < count < 8000
    assert read(value).is_cut


@pytest.mark.parametrize("value", [b"", *POISON], ids=range(len(POISON) + 1))
def test_what_is_no_nodes_value_is_refused(value: bytes) -> None:
    """R8."""
    with pytest.raises(BadRecord):
        read(value)


@pytest.mark.parametrize("text", ["10.0.0.1:1", "[::1]:65535", "169.254.169.254:80"])
def test_an_address_is_an_ip_and_a_port(text: str) -> None:
    ip, port = split_address(text)
    assert text in (f"{ip}:{port}", f"[{ip}]:{port}")

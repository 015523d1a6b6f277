"""A load takes its bytes from a node that has them, and from the source where no node is of use."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import redis

import warmshelf
from kit.adapters import adapter_files, pair
from kit.fleet import Fleet, Node
from kit.models import pattern, safetensors_bytes
from kit.neighbour_faults import (
    Between,
    BreaksCrcs,
    Dead,
    Deaf,
    Drips,
    EndsEarly,
    FlipsBits,
    Hangs,
    LiesOfItsLayout,
    Misplaces,
    NeverEnds,
    claim,
)
from kit.processes import eventually, read_all
from kit.scrape import HTTP, pages_of
from warmshelf.errors import SourceChanged, TooManyStreams
from warmshelf.v1 import lease_pb2, transfer_pb2

ALLOWED = ("--neighbours", "127.0.0.1/32")
TENSOR_BYTES = 3 << 20
QUICK = {"neighbour_stall_seconds": "1", "neighbour_bytes_per_second_min": "64MiB", "neighbour_wait_seconds": "0.2"}


def write_base(directory: Path, tag: int = 1, tokenizer: bytes = b'{"model": 1}') -> Path:
    """Write a base of two tensors, larger than a part, one odd in its size, with its config and tokenizer."""
    directory.mkdir()
    tensors = {
        "a.weight": ("BF16", (TENSOR_BYTES // 2,), pattern(tag, TENSOR_BYTES)),
        "b.bias": ("U8", (7,), b"1234567"),
    }
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    (directory / "config.json").write_bytes(json.dumps({"model_type": "llama"}).encode())
    (directory / "tokenizer.json").write_bytes(tokenizer)
    return directory


def node_of(fleet: Fleet, name: str, *options: str, **settings: str) -> Node:
    node = fleet.node(begin=False)
    node.options += ("--node-name", name, "--advertise", "127.0.0.1", *HTTP, *options)
    return node.begin(**(QUICK | settings))


def outcome(node: Node, what: str) -> float:
    return pages_of(node).scrape()[f'warmshelf_neighbour_loads_total{{outcome="{what}"}}']


def make_warm(fleet: Fleet, node: Node, artifact_id: str, source: Path) -> str:
    """Have an artifact resident on a node, and known with its digest on all; return that."""
    with node.connect() as shelf:
        shelf.register(artifact_id, source=str(source))
        shelf.acquire(artifact_id).release()
        eventually(lambda: shelf.get(artifact_id).digest != "", "its digest is known")
        digest = shelf.get(artifact_id).digest
    for other in fleet.nodes:
        with other.connect() as shelf:
            eventually(lambda shelf=shelf: _digest(shelf, artifact_id) == digest, "it is known everywhere")  # type: ignore[misc]
    return digest


def told_of(shelf: warmshelf.Shelf, artifact_id: str, digest: str) -> None:
    """Wait until a node has been told that this content is resident somewhere."""
    eventually(lambda: any(one.digest == digest for one in shelf.where(artifact_id)), "it is told where")


def _digest(shelf: warmshelf.Shelf, artifact_id: str) -> str:
    return {one.artifact_id: one.digest for one in shelf.list()}.get(artifact_id, "")


def test_a_base_and_an_adapter_are_taken_from_a_neighbour_while_their_sources_are_away(fleet: Fleet) -> None:
    base = write_base(fleet.models / "base")
    lora = fleet.models / "lora"
    lora.mkdir()
    for name, data in adapter_files(pair("layers.0.q_proj", 4), r=4).items():
        (lora / name).write_bytes(data)
    a, b = node_of(fleet, "a"), node_of(fleet, "b", *ALLOWED)
    make_warm(fleet, a, "acme/base", base)
    digest = make_warm(fleet, a, "acme/lora", lora)
    with a.connect() as here, b.connect() as there:
        with here.acquire("acme/base") as lease, here.acquire("acme/lora") as other:
            expected = read_all(lease), read_all(other), other.config_json
        base.rename(fleet.models / "moved")
        lora.rename(fleet.models / "moved-too")
        told_of(there, "acme/lora", digest)
        with there.acquire("acme/base") as lease, there.acquire("acme/lora") as other:
            assert (read_all(lease), read_all(other), other.config_json) == expected
            assert lease.artifact.digest == here.get("acme/base").digest
            inspected = [shelf.get("acme/lora").inspection for shelf in (here, there)]
            assert inspected[0] is not None
            assert inspected[0] == inspected[1]
        there.export("acme/base", fleet.models / "exported")
        assert (fleet.models / "exported" / "tokenizer.json").read_bytes() == b'{"model": 1}'
        assert there.verify("acme/base") > TENSOR_BYTES
    assert outcome(b, "ok") == 2
    scrape = pages_of(b).scrape()
    assert scrape['warmshelf_load_seconds_count{kind="base",outcome="ok",scheme="neighbour"}'] == 1
    assert pages_of(a).scrape()['warmshelf_neighbour_uploads_total{outcome="begun"}'] == 2
    b.kill()
    b.begin()  # what was taken is taken over as everything else
    with b.connect() as there, there.acquire("acme/base") as lease:
        assert read_all(lease) == expected[0]


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (FlipsBits, "lied"),
        (BreaksCrcs, "lied"),
        (Misplaces, "lied"),
        (NeverEnds, "lied"),
        (EndsEarly, "lied"),
        (LiesOfItsLayout, "lied"),
        (Drips, "slow"),
        (Hangs, "slow"),
        (Deaf, "slow"),
        (Dead, "dead"),
    ],
)
def test_a_neighbour_that_is_of_no_use_is_left_alone_and_the_source_is_taken(
    fleet: Fleet, fault: type[Between], word: str
) -> None:
    """R9, N16."""
    base = write_base(fleet.models / "base")
    a = fleet.node()  # tells nobody where it can be reached
    b = node_of(fleet, "b", *ALLOWED)
    digest = make_warm(fleet, a, "acme/base", base)
    with a.connect() as here, b.connect() as there, fault(a.tcp_address) as it:
        with here.acquire("acme/base") as lease:
            expected = read_all(lease)
        with redis.Redis(port=fleet.server.port) as client:
            claim(client, it.address, "acme/base", digest)
        began = time.monotonic()
        with there.acquire("acme/base") as lease:
            assert read_all(lease) == expected
        assert time.monotonic() - began < 15
        assert outcome(b, word) == 1
        assert outcome(b, "ok") == 0
        there.evict("acme/base")
        there.acquire("acme/base").release()  # nobody is asked again
        assert outcome(b, word) == 1


def test_what_is_passed_on_unchanged_is_taken(fleet: Fleet) -> None:
    """The faults above are the faults' and not the way's."""
    base = write_base(fleet.models / "base")
    a = fleet.node()
    b = node_of(fleet, "b", *ALLOWED)
    digest = make_warm(fleet, a, "acme/base", base)
    with b.connect() as there, Between(a.tcp_address) as it, redis.Redis(port=fleet.server.port) as client:
        claim(client, it.address, "acme/base", digest)
        there.acquire("acme/base").release()
        assert it.read_count > 0
    assert outcome(b, "ok") == 1


def test_nobody_is_asked_outside_the_networks_that_are_allowed_nor_where_none_are(fleet: Fleet) -> None:
    """R8."""
    base = write_base(fleet.models / "base")
    a = fleet.node()
    b, c = node_of(fleet, "b", *ALLOWED), node_of(fleet, "c")
    digest = make_warm(fleet, a, "acme/base", base)
    with (
        Deaf(host="127.0.0.2") as outside,
        Deaf() as inside,
        redis.Redis(port=fleet.server.port) as client,
        b.connect() as there,
        c.connect() as third,
    ):
        claim(client, outside.address, "acme/base", digest, "d" * 16)
        claim(client, "169.254.169.254:80", "acme/base", digest, "e" * 16)
        claim(client, f"[::ffff:127.0.0.2]:{outside.address.rpartition(':')[2]}", "acme/base", digest, "f" * 16)
        there.acquire("acme/base").release()
        claim(client, inside.address, "acme/base", digest)
        third.acquire("acme/base").release()
        assert (outside.read_count, inside.read_count) == (0, 0)
    assert outcome(b, "not_allowed") == 3
    assert outcome(c, "not_allowed") == 0


def test_other_small_files_than_those_that_are_pinned_are_not_taken(fleet: Fleet, tmp_path: Path) -> None:
    base = write_base(fleet.models / "base")
    other = write_base(fleet.models / "other", tokenizer=b'{"model": 2}')
    a, b = fleet.node(), node_of(fleet, "b", *ALLOWED)
    alone = fleet.node(f"sqlite://{tmp_path}/registry.sqlite")
    with alone.connect() as shelf:
        shelf.register("acme/base", source=str(other))
        shelf.acquire("acme/base").release()
    fleet.nodes.remove(alone)
    digest = make_warm(fleet, a, "acme/base", base)
    with b.connect() as there, redis.Redis(port=fleet.server.port) as client, alone.connect() as shelf:
        eventually(lambda: shelf.get("acme/base").digest == digest, "the tensors and the config are the same")
        claim(client, alone.tcp_address, "acme/base", digest)
        there.acquire("acme/base").release()
        there.export("acme/base", fleet.models / "exported")
        assert (fleet.models / "exported" / "tokenizer.json").read_bytes() == b'{"model": 1}'
    assert outcome(b, "lied") == 1
    fleet.nodes.append(alone)


def test_what_came_from_a_neighbour_is_compared_with_the_source_at_the_next_load_from_there(fleet: Fleet) -> None:
    base = write_base(fleet.models / "base")
    a, b = node_of(fleet, "a"), node_of(fleet, "b", *ALLOWED)
    digest = make_warm(fleet, a, "acme/base", base)
    with a.connect() as here, b.connect() as there:
        told_of(there, "acme/base", digest)
        there.acquire("acme/base").release()
        assert outcome(b, "ok") == 1
        shutil.rmtree(base)
        write_base(base, tag=2)
        there.register("acme/base", source=str(base))  # its headers are the same
        here.evict("acme/base")
        there.evict("acme/base")
        with pytest.raises(SourceChanged):
            there.acquire("acme/base")


def test_no_more_nodes_load_from_one_than_may_and_the_others_take_the_source(fleet: Fleet) -> None:
    base = write_base(fleet.models / "base")
    a, b = node_of(fleet, "a", uploads_max="1"), node_of(fleet, "b", *ALLOWED)
    digest = make_warm(fleet, a, "acme/base", base)
    with warmshelf.connect(a.tcp_address) as one, warmshelf.connect(a.tcp_address) as two, b.connect() as there:
        told_of(there, "acme/base", digest)
        assert read_as_a_node(one) == 4096
        assert read_as_a_node(one) == 4096  # the same lease may go on
        with pytest.raises(TooManyStreams):
            read_as_a_node(two)
        with two.acquire("acme/base") as lease:  # workers are not nodes
            assert len(lease) == 2
        there.acquire("acme/base").release()
        assert outcome(b, "busy") >= 1
        assert outcome(b, "ok") == 0
        one.close()
        there.evict("acme/base")
        there.acquire("acme/base").release()
        assert outcome(b, "ok") == 1
    assert pages_of(a).scrape()['warmshelf_neighbour_uploads_total{outcome="refused"}'] >= 2


_leases: WeakKeyDictionary[warmshelf.Shelf, lease_pb2.AcquireLeaseResponse] = WeakKeyDictionary()


def read_as_a_node(shelf: warmshelf.Shelf) -> int:
    """Read the first page as another node does, always on the same lease; return how many bytes came."""
    link = shelf._current()
    connection, session = link.connection, link.session(shelf._deadline())
    if shelf not in _leases:
        wanted = lease_pb2.AcquireLeaseRequest(session_id=session.session_id, artifact_id="acme/base")
        _leases[shelf] = connection.once(lambda: connection.lease.AcquireLease(wanted))
    request = transfer_pb2.ReadSegmentRequest(
        session_id=session.session_id,
        lease_id=_leases[shelf].lease.lease_id,
        limit_bytes=4096,
        fallback_reason="neighbour",
    )
    chunks = connection.once(lambda: list(connection.transfer.ReadSegment(request)))
    return sum(len(chunk.data) for chunk in chunks)


def test_many_that_start_at_once_spread_over_those_that_have_it_by_then(fleet: Fleet) -> None:
    base = write_base(fleet.models / "base")
    a = node_of(fleet, "a", uploads_max="1")
    others = [node_of(fleet, name, *ALLOWED, uploads_max="1", neighbour_wait_seconds="20") for name in "bcd"]
    digest = make_warm(fleet, a, "acme/base", base)
    base.rename(fleet.models / "moved")

    def acquire(node: Node) -> None:
        with node.connect() as shelf:
            told_of(shelf, "acme/base", digest)
            shelf.acquire("acme/base").release()

    threads = [threading.Thread(target=acquire, args=(node,)) for node in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome(node, "ok") for node in others] == [1, 1, 1]


def test_of_several_nodes_those_of_the_same_zone_come_first_and_the_others_when_those_are_busy(fleet: Fleet) -> None:
    base = write_base(fleet.models / "base")
    far = node_of(fleet, "a", "--node-zone", "east")
    near = node_of(fleet, "b", "--node-zone", "west", *ALLOWED, uploads_max="1")
    c = node_of(fleet, "c", "--node-zone", "west", *ALLOWED)
    digest = make_warm(fleet, far, "acme/base", base)
    with far.connect() as one, near.connect() as two, c.connect() as there:
        told_of(two, "acme/base", digest)
        two.acquire("acme/base").release()
        eventually(lambda: len(there.where("acme/base")) == 2, "both are told of")
        for _ in range(6):
            there.acquire("acme/base").release()
            there.evict("acme/base")
        assert (uploads_of(far), uploads_of(near)) == (1, 6)
        with warmshelf.connect(near.tcp_address) as other:
            read_as_a_node(other)
            there.acquire("acme/base").release()
        assert (uploads_of(far), uploads_of(near)) == (2, 7)
        assert one.get("acme/base").digest == digest


def uploads_of(node: Node) -> float:
    return pages_of(node).scrape()['warmshelf_neighbour_uploads_total{outcome="begun"}']

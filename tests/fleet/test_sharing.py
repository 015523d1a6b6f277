"""What one node registers, pins, replaces and removes is so on every node."""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path

import pytest

from kit.adapters import adapter_files, pair
from kit.fleet import Fleet
from kit.models import write_model
from kit.processes import eventually, read_all
from warmshelf.errors import ArtifactNotFound, SourceChanged, SpecMismatch
from warmshelf.types import SyncState
from warmshelfd.registry.redis import ANSWER_SECONDS


def write_adapter(directory: Path, rank: int = 4) -> Path:
    directory.mkdir()
    for name, data in adapter_files(pair("model.layers.0.q_proj", rank), r=rank).items():
        (directory / name).write_bytes(data)
    return directory


def test_what_is_registered_on_one_node_is_acquired_on_another(fleet: Fleet) -> None:
    written = write_model(fleet.models / "base.safetensors", tag=1)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, b.connect() as there:
        here.register("acme/base@v1", source=str(fleet.models / "base.safetensors"))
        began = time.monotonic()
        fleet.agree("acme/base@v1")
        print(f"known on the other node after {(time.monotonic() - began) * 1000:.0f} ms")
        with there.acquire("acme/base@v1") as lease:
            assert read_all(lease) == written
        assert there.get("acme/base@v1").register_time == here.get("acme/base@v1").register_time


def test_an_adapter_arrives_with_its_inspection_and_a_number_of_the_nodes_own(fleet: Fleet) -> None:
    one, two = write_adapter(fleet.models / "one"), write_adapter(fleet.models / "two", rank=8)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, b.connect() as there:
        here.register("acme/one", source=str(one))
        fleet.agree("acme/one")
        there.register("acme/two", source=str(two))
        fleet.agree("acme/one", "acme/two")
        for shelf in (here, there):
            found = [shelf.get(artifact_id).inspection for artifact_id in ("acme/one", "acme/two")]
            adapters = [inspection.adapter for inspection in found if inspection and inspection.adapter]
            assert [adapter.rank_max for adapter in adapters] == [4, 8]
            assert len({adapter.adapter_number for adapter in adapters} - {0}) == 2
        with there.acquire("acme/one") as lease:
            assert len(lease) == 2


def test_of_two_nodes_that_register_an_id_at_once_with_different_specs_exactly_one_wins(fleet: Fleet) -> None:
    sources = [fleet.models / "one.safetensors", fleet.models / "two.safetensors"]
    for tag, path in enumerate(sources):
        write_model(path, tag, size=4096)
    nodes = [fleet.node(), fleet.node()]
    for number, node in enumerate(nodes):  # Redis is in reach of each
        with node.connect() as shelf:
            shelf.register(f"acme/of-{number}", source=str(sources[0]))
    fleet.agree("acme/of-0", "acme/of-1")

    def register(number: int, artifact_id: str) -> tuple[bool, float]:
        began = time.monotonic()
        with nodes[number].connect() as shelf:
            try:
                shelf.register(artifact_id, source=str(sources[number]))
            except SpecMismatch:
                return False, time.monotonic() - began
            return True, time.monotonic() - began

    decided = 0
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for turn in range(10):
            won, seconds = zip(*threads.map(register, (0, 1), [f"acme/{turn}"] * 2), strict=True)
            fleet.agree(f"acme/{turn}")
            uris = set()
            for node in nodes:
                with node.connect() as shelf:
                    uris.add(shelf.get(f"acme/{turn}").spec.source.uri)
            if max(seconds) < ANSWER_SECONDS:  # else it was queued, and one of them learned later that it had lost
                assert sorted(won) == [False, True]
                assert uris == {f"file://{sources[won.index(True)]}"}
            assert len(uris) == 1
            decided += sorted(won) == [False, True]
    assert decided > 0


def test_the_digest_of_the_first_load_holds_for_all_nodes(fleet: Fleet) -> None:
    path = fleet.models / "base.safetensors"
    write_model(path, tag=1)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, b.connect() as there:
        here.register("acme/base", source=str(path))
        with here.acquire("acme/base"):
            eventually(lambda: bool(here.get("acme/base").digest), "the digest is learned")
        eventually(lambda: there.get("acme/base").digest == here.get("acme/base").digest, "the digest is shared")
        path.unlink()
        write_model(path, tag=2)
        with pytest.raises(SourceChanged), there.acquire("acme/base"):
            pass


def test_a_replaced_spec_is_replaced_on_every_node_and_holders_keep_theirs(fleet: Fleet) -> None:
    old = write_model(fleet.models / "old.safetensors", tag=1)
    new = write_model(fleet.models / "new.safetensors", tag=2)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, b.connect() as there:
        here.register("acme/base", source=str(fleet.models / "old.safetensors"))
        fleet.agree("acme/base")
        with there.acquire("acme/base") as lease:
            here.register("acme/base", source=str(fleet.models / "new.safetensors"), replace=True)
            eventually(lambda: there.get("acme/base").spec.source.uri.endswith("new.safetensors"), "it is replaced")
            with there.acquire("acme/base") as newer:
                assert read_all(newer) == new
                assert newer.generation == lease.generation + 1
            assert read_all(lease) == old


def test_what_is_replaced_just_when_another_node_pins_it_stays_replaced(fleet: Fleet) -> None:
    """The pin may be heard between the replacement and its publishing; so it is tried many times."""
    old, new = (str(fleet.models / f"{name}.safetensors") for name in ("old", "new"))
    write_model(Path(old), tag=1, size=4096)
    write_model(Path(new), tag=2, size=4096)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, b.connect() as there:
        for turn in range(40):
            artifact_id = f"acme/{turn}"
            here.register(artifact_id, source=old)
            fleet.agree(artifact_id)
            there.acquire(artifact_id).release()
            here.register(artifact_id, source=new, replace=True)
        fleet.agree(*(f"acme/{turn}" for turn in range(40)))
        for shelf in (here, there):
            eventually(
                lambda shelf=shelf: all(a.spec.source.uri.endswith(new) for a in shelf.list()),  # type: ignore[misc]
                "all are replaced",
            )


def test_a_removed_id_is_removed_everywhere_and_may_be_registered_again(fleet: Fleet) -> None:
    path = fleet.models / "base.safetensors"
    write_model(path, tag=1)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, b.connect() as there:
        here.register("acme/base", source=str(path))
        fleet.agree("acme/base")
        there.remove("acme/base")
        eventually(lambda: a.sync_of("acme/base") is None, "it is removed on the other node")
        with pytest.raises(ArtifactNotFound), here.acquire("acme/base"):
            pass
        here.register("acme/base", source=str(path))
        fleet.agree("acme/base")


def test_ids_are_kept_apart_and_unfolded_through_the_registry(fleet: Fleet) -> None:
    """B05."""
    ids = ["org/a", "org_a", "Org/A", "org/a@v2", "a:b", "a+b", "A" * 255, "x" + "/y" * 127]
    contents = {}
    for tag, artifact_id in enumerate(ids):
        contents[artifact_id] = write_model(fleet.models / f"{tag}.safetensors", tag, size=4096, count=1)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, b.connect() as there:
        for tag, artifact_id in enumerate(ids):
            here.register(artifact_id, source=str(fleet.models / f"{tag}.safetensors"))
        fleet.agree(*ids)
        for artifact_id in ids:
            with there.acquire(artifact_id) as lease:
                assert read_all(lease) == contents[artifact_id]


def test_a_new_node_knows_everything_and_a_restarted_one_still_does(fleet: Fleet) -> None:
    path = fleet.models / "base.safetensors"
    write_model(path, tag=1)
    a = fleet.node()
    with a.connect() as here:
        for number in range(50):
            here.register(f"acme/{number}", source=str(path))
    ids = [f"acme/{number}" for number in range(50)]
    b = fleet.node()
    fleet.agree(*ids)
    b.kill()
    with a.connect() as here:
        here.remove("acme/7")
    b.begin()
    eventually(lambda: b.sync_of("acme/7") is None, "what was removed meanwhile is removed")
    assert b.knows(*(set(ids) - {"acme/7"}))


def test_what_was_pushed_stays_on_its_node(fleet: Fleet) -> None:
    a, b = fleet.node(), fleet.node()
    with a.connect() as here:
        here.push("acme/pushed", path=write_adapter(fleet.models / "one"))
    assert a.sync_of("acme/pushed") is SyncState.LOCAL
    assert b.sync_of("acme/pushed") is None

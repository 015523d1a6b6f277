"""Broken, hostile and incomplete sources: refused by name, at no cost, and nobody else notices."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.hostile_safetensors import LIMITS, Hostile
from kit.models import Tensor, filled, pattern, safetensors_bytes, write_model, write_shards
from kit.plain import Plain
from kit.processes import Daemon, eventually, read_all
from warmshelf import errors
from warmshelf.v1 import catalog_pb2

MIB = 1 << 20

# --- B20: headers ------------------------------------------------------------


def test_every_hostile_header_is_refused_and_the_daemon_serves_on(daemon: Daemon, models: Path) -> None:
    """B20: one daemon meets them all, one after another, and then loads a good file of the same name."""
    limits = ("header_bytes_max", "tensor_count_max", "metadata_bytes_max")
    daemon.start(env={f"WARMSHELF_FORMAT_{name.upper()}": str(getattr(LIMITS, name)) for name in limits})
    path = models / "m.safetensors"
    with daemon.connect() as shelf:
        for hostile in Hostile.__subclasses__():
            path.write_bytes(hostile().content())
            with pytest.raises(hostile.error, match=r"m\.safetensors"):
                shelf.register("m", path)
        assert shelf.list() == []
        tensors = write_model(path, 1)
        shelf.register("m", path)
        with shelf.acquire("m", timeout=20) as lease:
            assert read_all(lease) == tensors


def millions_of_lists() -> bytes:
    return b'{"a":[' + b"[]," * (8 * MIB) + b"[]]}"


def a_terabyte_and_much_space() -> bytes:
    return b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (1 << 40, 1 << 40) + b" " * 24 * MIB


def metadata_of_many_megabytes() -> bytes:
    return b'{"__metadata__":{"k":"' + b"x" * 24 * MIB + b'"}}'


@pytest.mark.parametrize("header", [millions_of_lists, a_terabyte_and_much_space, metadata_of_many_megabytes])
def test_a_hostile_header_leaves_less_in_the_daemons_memory_than_its_file_has(
    shared: Daemon, models: Path, header: Callable[[], bytes]
) -> None:
    """B20: also when it comes again and again, to one thread after another."""
    path = models / "m.safetensors"
    text = header()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with shared.connect() as shelf:
        before = shared.memory_bytes()
        for _ in range(10):
            with pytest.raises((errors.MalformedArtifact, errors.SourceTruncated)):
                shelf.register("m", path)
        size = path.stat().st_size
        eventually(lambda: shared.memory_bytes() - before < size // 2, "what the header took is given back", 3)
        assert shelf.list() == []


def test_two_hundred_thousand_tiny_tensors_are_served(shared: Daemon, models: Path) -> None:
    """B20: big but legal."""
    path = models / "m.safetensors"
    tensors: dict[str, Tensor] = {
        f"model.layers.{i // 100}.experts.{i % 100}.weight": ("U8", (4,), i.to_bytes(4, "little"))
        for i in range(200_000)
    }
    path.write_bytes(safetensors_bytes(tensors))
    request = catalog_pb2.RegisterArtifactRequest(artifact_id="m", defer_inspection=True)  # so it is read once
    request.spec.source.uri = f"file://{path}"
    with Plain(shared.address) as plain, shared.connect() as shelf:
        plain.catalog.RegisterArtifact(request, timeout=20)
        with shelf.acquire("m", timeout=60) as lease:
            assert len(lease) == 200_000
            for name in list(tensors)[::10_000]:
                assert bytes(lease[name]) == tensors[name][2]


# --- B21: a bad artifact beside a good stream --------------------------------


def no_weights(directory: Path) -> None:
    (directory / "config.json").write_text("{}")


def missing_shard(directory: Path) -> None:
    write_shards(directory, [filled(1), {"v": filled(2)["w"]}])[1].unlink()


def wrong_shape(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(safetensors_bytes({"w": ("U8", (5,), b"1234")}))


def cut_file(directory: Path) -> None:
    whole = safetensors_bytes(filled(1))
    (directory / "model.safetensors").write_bytes(whole[:-1])


def unknown_dtype(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(safetensors_bytes({"w": ("X9", (4,), b"1234")}))


BAD: dict[Callable[[Path], None], type[errors.WarmshelfError]] = {
    no_weights: errors.UnsupportedFormat,
    missing_shard: errors.SourceNotFound,
    wrong_shape: errors.MalformedArtifact,
    cut_file: errors.SourceTruncated,
    unknown_dtype: errors.UnsupportedDtype,
}


def test_a_bad_artifact_beside_a_good_stream_harms_nobody_and_can_be_registered_again(
    shared: Daemon, models: Path
) -> None:
    """B21: each cause has its own error; the ID stays unknown until good bytes come."""
    tensors = write_model(models / "good.safetensors", 1, size=16 * MIB)
    directory = models / "x"
    with Plain(shared.tcp_address) as plain, shared.connect() as shelf:
        plain.register("good", models / "good.safetensors")
        lease_id = plain.acquire("good").lease.lease_id
        stream = plain.read(lease_id)
        parts = [next(stream).data]
        segments = shared.segments()
        for spoil, error in BAD.items():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            spoil(directory)
            with pytest.raises(error) as caught:
                shelf.register("x", directory)
            assert type(caught.value) is error
            with pytest.raises(errors.ArtifactNotFound):
                shelf.acquire("x", timeout=5)
            assert [a.artifact_id for a in shelf.list()] == ["good"]
            assert shared.segments() == segments
            parts.append(next(stream).data)
        shutil.rmtree(directory)
        fresh = write_model(directory / "model.safetensors", 2)
        shelf.register("x", directory)
        with shelf.acquire("x", timeout=20) as lease:
            assert read_all(lease) == fresh
        whole = b"".join([*parts, *(chunk.data for chunk in stream)])
        assert all(data in whole for data in tensors.values())


def test_what_breaks_after_registration_fails_at_the_load_and_is_told_until_it_is_good_again(
    shared: Daemon, models: Path
) -> None:
    """B21, B19: the failure is kept and shown; the others do not notice."""
    tensors = write_model(models / "x.safetensors", 1)
    good = write_model(models / "good.safetensors", 2)
    whole = (models / "x.safetensors").read_bytes()
    with shared.connect() as shelf:
        shelf.register("good", models / "good.safetensors")
        shelf.register("x", models / "x.safetensors")
        shelf.acquire("x", timeout=20).release()
        eventually(lambda: shelf.get("x").digest != "", "the digest is known")
        shelf.evict("x")
        (models / "x.safetensors").write_bytes(whole[:-100])
        for _ in range(2):
            with pytest.raises(errors.SourceTruncated) as caught:
                shelf.acquire("x", timeout=20)
            assert caught.value.details["size_bytes"] == len(whole) - 100
        failure = shelf.get("x").failure
        assert failure is not None
        assert (failure.reason, failure.details["expected_bytes"]) == ("SOURCE_TRUNCATED", str(len(whole)))
        with shelf.acquire("good", timeout=20) as lease:
            assert read_all(lease) == good
        (models / "x.safetensors").write_bytes(whole)
        with shelf.acquire("x", timeout=20) as lease:
            assert read_all(lease) == tensors
        assert shelf.get("x").failure is None


# --- B27: shards -------------------------------------------------------------

SHARDS: list[dict[str, Tensor]] = [{f"t{i}": ("U8", (64,), pattern(i, 64))} for i in range(3)]
ALL = {name: tensor[2] for shard in SHARDS for name, tensor in shard.items()}


def remove_one(shard: Path) -> None:
    shard.unlink()


def cut_one(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-1])


def leave_out_a_promised_tensor(shard: Path) -> None:
    shard.write_bytes(safetensors_bytes({"other": SHARDS[1]["t1"]}))


SPOILED: dict[Callable[[Path], None], type[errors.WarmshelfError]] = {
    remove_one: errors.SourceNotFound,
    cut_one: errors.SourceTruncated,
    leave_out_a_promised_tensor: errors.MalformedArtifact,
}


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("when", ["register", "load"])
def test_a_sharded_base_that_is_not_whole_is_refused_naming_the_shard_until_it_is_whole(
    shared: Daemon, models: Path, spoil: Callable[[Path], None], when: str
) -> None:
    """B27: never a shorter tensor set; restoring the file makes the next call work."""
    shard = write_shards(models / "base", SHARDS)[1]
    whole = shard.read_bytes()
    with shared.connect() as shelf:
        if when == "load":
            shelf.register("base", models / "base")
            shelf.acquire("base", timeout=20).release()
            eventually(lambda: shelf.get("base").digest != "", "the digest is known")
            shelf.evict("base")
        spoil(shard)
        with pytest.raises(SPOILED[spoil]) as caught:
            shelf.register("base", models / "base") if when == "register" else shelf.acquire("base", timeout=20)
        assert type(caught.value) is SPOILED[spoil]
        assert shard.name in caught.value.message
        assert shared.segments() == []
        assert len(shelf.list()) == (when == "load")
        shard.write_bytes(whole)
        if when == "register":
            shelf.register("base", models / "base")
        with shelf.acquire("base", timeout=20) as lease:
            assert read_all(lease) == ALL
            assert lease.generation == 1


def test_only_what_the_index_lists_is_served(shared: Daemon, models: Path) -> None:
    """B27: files and tensors beside the index's are not the artifact's."""
    write_shards(models / "base", [{**SHARDS[0], "extra": SHARDS[1]["t1"]}, SHARDS[2]])
    index = models / "base" / "model.safetensors.index.json"
    listing = json.loads(index.read_text())
    del listing["weight_map"]["extra"]
    index.write_text(json.dumps(listing))
    (models / "base" / "stray.safetensors").write_bytes(b"nonsense")
    with shared.connect() as shelf:
        shelf.register("base", models / "base")
        with shelf.acquire("base", timeout=20) as lease:
            assert read_all(lease) == {"t0": ALL["t0"], "t2": ALL["t2"]}

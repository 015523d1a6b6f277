"""A directory in Redis is read bit for bit, or is an error of the right kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from kit.models import pattern
from kit.redis_server import RedisServer
from warmshelf import errors
from warmshelf.redis_layout import CHUNK_BYTES, chunk_key, manifest_key
from warmshelf.redis_store import write_directory
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.redis import RedisOpener

NAME = "models/org/a"
SIZE = 3 * CHUNK_BYTES + 12_345
DATA = pattern(7, SIZE)
FILES = {"model.safetensors": DATA, "config.json": b"{}", "empty.txt": b"", "a b%{}:é.json": b"[1]"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "written"
    path.mkdir()
    for name, data in FILES.items():
        (path / name).write_bytes(data)
    return path


@pytest.fixture
def written(server: RedisServer, directory: Path) -> str:
    return write_directory(server.uri("models"), "org/a", directory)


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as it:
        yield it


@pytest.fixture
def opened(server: RedisServer, redis_opener: Callable[..., RedisOpener]) -> Callable[[str], OpenSource]:
    return redis_opener(server.uri("models")).open


def etag(client: redis.Redis) -> str:
    return client.hget(manifest_key(NAME), "etag").decode()


def chunk(client: redis.Redis, index: int, file: str = "model.safetensors") -> bytes:
    return chunk_key(NAME, etag(client), file, index)


# --- what is right ------------------------------------------------------------


def test_every_file_comes_back_under_its_name(written: str, opened: Callable[[str], OpenSource]) -> None:
    with opened(written) as source:
        assert dict(source.files()) == {name: len(data) for name, data in FILES.items()}
        for name, data in FILES.items():
            assert source.read(name, 0, len(data)) == data


def test_any_range_is_the_files_range(written: str, opened: Callable[[str], OpenSource]) -> None:
    """Within a chunk, over borders, at both ends, of one byte and of none."""
    edges = [n * CHUNK_BYTES + d for n in range(4) for d in (-1, 0, 1)]
    ranges = [(a, b) for a in edges for b in edges if 0 <= a <= b]
    chooser = random.Random(1)
    ranges += [tuple(sorted((chooser.randrange(SIZE + 1), chooser.randrange(SIZE + 1)))) for _ in range(30)]
    with opened(written) as source:
        for start, end in [*ranges, (SIZE, SIZE), (SIZE - 1, SIZE)]:
            assert source.read("model.safetensors", start, end - start) == DATA[start:end]


def test_nothing_but_the_artifacts_own_keys_is_asked_for(
    written: str, opened: Callable[[str], OpenSource], client: redis.Redis
) -> None:
    """No command that looks at the whole database, and none that waits for it."""
    client.config_resetstat()
    with opened(written) as source:
        source.read("model.safetensors", 0, SIZE)
        source.fingerprint(list(source.files()))
    used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    assert used <= {"type", "hmget", "getrange", "info", "config", "config|resetstat"}


def test_all_keys_have_one_hash_tag_and_stay_for_good(written: str, client: redis.Redis) -> None:
    keys = client.keys("*")
    assert len(keys) == 1 + 4 + 1 + 1
    assert {key.partition(b"{")[2].partition(b"}")[0] for key in keys} == {b"models/org/a"}
    assert {client.ttl(key) for key in keys} == {-1}


def test_a_database_other_than_the_first_is_meant_by_its_number(
    server: RedisServer, directory: Path, redis_opener: Callable[..., RedisOpener]
) -> None:
    uri = write_directory(server.uri("models", db=3), "org/a", directory)
    opener = redis_opener(server.uri("models", db=3), server.uri("models", db=0), server.uri("models", db=99))
    with opener.open(uri) as source:
        assert source.read("config.json", 0, 2) == b"{}"
    with pytest.raises(errors.SourceNotFound):
        opener.open(server.uri(NAME, db=0))
    with pytest.raises(errors.SourceUnavailable, match="database 99"):
        opener.open(server.uri(NAME, db=99))


def test_writing_again_replaces_at_once_and_leaves_nothing_of_before(
    written: str, server: RedisServer, directory: Path, opened: Callable[[str], OpenSource], client: redis.Redis
) -> None:
    with opened(written) as source:
        before = source.fingerprint(["config.json"])
        keys = set(client.keys("*"))
        (directory / "config.json").write_bytes(b'{"new": 1}')
        (directory / "empty.txt").unlink()
        write_directory(server.uri("models"), "org/a", directory)
        assert set(client.keys("*")) & keys == {manifest_key(NAME)}
        assert source.fingerprint(["config.json"]) == before  # no other bytes are read from here
        with pytest.raises(errors.SourceChangedDuringLoad):
            source.read("model.safetensors", 0, SIZE)
    with opened(written) as source:
        assert source.as_opened(["config.json"]) == source.fingerprint(["config.json"]) != before
        assert source.read("config.json", 0, 10) == b'{"new": 1}'


# --- what is not --------------------------------------------------------------


def delete(client: redis.Redis) -> None:
    client.delete(chunk(client, 1))


def shorten(client: redis.Redis) -> None:
    client.set(chunk(client, 1), client.get(chunk(client, 1))[:-1])


def flip(client: redis.Redis) -> None:
    client.setrange(chunk(client, 1), 77, b"\xff")


def retype(client: redis.Redis) -> None:
    client.delete(key := chunk(client, 1))
    client.lpush(key, b"no value")


def flush(client: redis.Redis) -> None:
    client.flushall()


def forget_manifest(client: redis.Redis) -> None:
    client.delete(chunk(client, 1), manifest_key(NAME))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (delete, errors.SourceTruncated),
        (shorten, errors.SourceTruncated),
        (flip, errors.DigestMismatch),
        (retype, errors.MalformedArtifact),
        (flush, errors.SourceNotFound),
        (forget_manifest, errors.SourceNotFound),
    ],
)
def test_damage_to_an_open_artifact_is_an_error_that_names_it(
    damage: Callable[[redis.Redis], None],
    expected: type[errors.WarmshelfError],
    written: str,
    opened: Callable[[str], OpenSource],
    client: redis.Redis,
) -> None:
    """S16, B19: whether it is read whole or in part; the chunks beside it are still read."""
    with opened(written) as source:
        damage(client)
        for start, size in ((0, SIZE), (CHUNK_BYTES + 5, 10)):
            with pytest.raises(expected) as caught:
                source.read("model.safetensors", start, size)
            assert NAME in caught.value.message
        if expected is not errors.SourceNotFound:
            assert source.read("model.safetensors", 0, 100) == DATA[:100]


def test_a_longer_chunk_is_read_as_long_as_its_manifest_says(
    written: str, opened: Callable[[str], OpenSource], client: redis.Redis
) -> None:
    client.append(chunk(client, 1), b"more")
    with opened(written) as source:
        assert source.read("model.safetensors", 0, SIZE) == DATA


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size_bytes", "9223372036854775807"),
        ("size_bytes", "-1"),
        ("chunk_bytes", "1"),
        ("chunk_bytes", "4611686018427387904"),
        ("etag", "../../x"),
        ("files", b"\x05\x00a.bin" + b"\xff" * 8),
        ("files", b"\x00" * 4096),
        ("files", b"x" * (20 << 20)),
        ("etag", b"0" * (20 << 20)),
    ],
)
def test_forged_numbers_are_refused_before_anything_is_made_for_them(
    field: str, value: str | bytes, written: str, opened: Callable[[str], OpenSource], client: redis.Redis
) -> None:
    """R8: a manifest with any CRC that fits."""
    import crc32c  # noqa: PLC0415

    client.hset(manifest_key(NAME), field, value)
    if field == "files":
        client.hset(manifest_key(NAME), "files_crc32c", f"{crc32c.crc32c(value):08x}")
    with pytest.raises(errors.MalformedArtifact, match="org/a"):
        opened(written)


def test_a_manifest_that_is_none_is_told_from_none_at_all(
    written: str, opened: Callable[[str], OpenSource], client: redis.Redis
) -> None:
    client.hset(manifest_key(NAME), "format", "2")
    with pytest.raises(errors.UnsupportedFormat, match="version"):
        opened(written)
    client.hdel(manifest_key(NAME), "format", "files")
    with pytest.raises(errors.MalformedArtifact, match="no field 'format'"):
        opened(written)
    client.set(manifest_key(NAME), "text")
    with pytest.raises(errors.MalformedArtifact, match="string"):
        opened(written)
    with pytest.raises(errors.MalformedArtifact, match="another type"):
        opened(f"{written}?layout=warmshelf")
    client.delete(manifest_key(NAME))
    with pytest.raises(errors.SourceNotFound):
        opened(written)
    with pytest.raises(errors.SourceNotFound):
        opened(f"{written}?layout=warmshelf")


def test_a_range_behind_the_end_and_a_file_that_is_not_there_are_refused(
    written: str, opened: Callable[[str], OpenSource]
) -> None:
    with opened(written) as source:
        with pytest.raises(errors.SourceTruncated):
            source.read("config.json", 1, 2)
        with pytest.raises(errors.SourceNotFound):
            source.read("other.json", 0, 1)
        with pytest.raises(errors.SourceNotFound):
            source.fingerprint(["other.json"])

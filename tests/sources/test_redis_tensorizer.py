"""What tensorizer's ``to_redis`` wrote is read as its own reader reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import torch
from tensorizer import TensorDeserializer, TensorSerializer, stream_io

from kit.redis_server import RedisServer
from warmshelf import errors
from warmshelf.dtypes import DTYPES
from warmshelf.redis_store import write_directory
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.detect import detect
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.redis import RedisOpener

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

STATES: dict[str, Callable[[], dict]] = {
    "plain": lambda: {
        "embed.weight": torch.randn(300, 64).to(torch.bfloat16),
        "layer.weight": torch.randn(900, 640),
        "layer.scale": torch.tensor(2.5, dtype=torch.float64),
        "mask": torch.tensor([True, False, True]),
    },
    "dtypes": lambda: {
        "f8": torch.randn(64).to(torch.float8_e4m3fn),
        "c": torch.randn(3, 5, dtype=torch.complex64),
        "i": torch.arange(-3, 4, dtype=torch.int64),
        "h": torch.randn(7).to(torch.float16),
    },
    "empty tensors between": lambda: {
        "a": torch.randn(4),
        "none": torch.zeros(0, 3),
        "none.again": torch.zeros(2, 0),
        "b": torch.randn(4),
    },
    "nested": lambda: {"layers": [{"w": torch.randn(8)}, {"w": torch.randn(9)}], "a:b": torch.randn(2)},
    "one": lambda: {"имя": torch.randn(3)},
}


@pytest.fixture
def store(server: RedisServer, tmp_path: Path) -> Callable[..., Path]:
    """Writes a state dict to a file, and that with ``to_redis`` under a prefix; returns the file."""

    def run(state: dict, prefix: str, **options: object) -> Path:
        path = tmp_path / "written.tensors"
        serializer = TensorSerializer(str(path))
        serializer.write_state_dict(state)
        serializer.close()
        with server.client() as client:
            TensorDeserializer(str(path), device="cpu", lazy_load=True).to_redis(client, prefix, **options)
        return path

    return run


@pytest.fixture
def opened(server: RedisServer, redis_opener: Callable[..., RedisOpener]) -> Callable[[str], OpenSource]:
    return lambda name: redis_opener(server.uri("models")).open(server.uri(name))


@pytest.mark.parametrize("kind", STATES)
def test_the_virtual_file_is_the_file_that_was_written(
    kind: str, store: Callable[..., Path], opened: Callable[[str], OpenSource]
) -> None:
    path = store(STATES[kind](), "models/gpt")
    with opened("models/gpt") as source:
        assert dict(source.files()) == {"model.tensors": path.stat().st_size}
        assert source.read("model.tensors", 0, path.stat().st_size) == path.read_bytes()


@pytest.mark.parametrize("kind", ["plain", "dtypes", "one"])
def test_names_dtypes_shapes_and_bits_are_those_that_tensorizers_reader_finds(
    kind: str, store: Callable[..., Path], opened: Callable[[str], OpenSource], server: RedisServer
) -> None:
    store(STATES[kind](), "models/gpt")
    theirs = _by_tensorizer(server, "models/gpt")
    with opened("models/gpt") as source:
        found = detect(source, FormatLimits())
        assert [entry.name for entry in found.entries] == list(theirs)
        for entry in found.entries:
            tensor = theirs[entry.name]
            data = source.read("model.tensors", entry.offset_bytes, entry.size_bytes)
            assert f"torch.{DTYPES[entry.dtype].torch_name}" == str(tensor.dtype)
            assert entry.shape == tuple(tensor.shape)
            assert data == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _by_tensorizer(server: RedisServer, prefix: str) -> dict[str, torch.Tensor]:
    """Read with tensorizer itself, whose reader asks database 0 of a server without login."""
    with (
        stream_io.open_stream(f"redis://{server.host}:{server.port}/{prefix}") as stream,
        TensorDeserializer(stream, device="cpu", verify_hash=True) as tensors,
    ):
        return {name: tensor.clone() for name, tensor in tensors.items()}


# --- what is not as it should be ----------------------------------------------


def _data_key(client: redis.Redis, name: str) -> bytes:
    """Return the key of a tensor's data, which is the one at the larger offset."""
    keys = client.keys(f"models/gpt:{name}:*")
    return max(keys, key=lambda key: int(key.rpartition(b":")[2]))


def _header_key(client: redis.Redis, name: str) -> bytes:
    keys = client.keys(f"models/gpt:{name}:*")
    return min(keys, key=lambda key: int(key.rpartition(b":")[2]))


def lose_data(client: redis.Redis) -> None:
    client.delete(_data_key(client, "layer.weight"))


def lose_header(client: redis.Redis) -> None:
    client.delete(_header_key(client, "layer.weight"))


def cut_data(client: redis.Redis) -> None:
    key = _data_key(client, "layer.weight")
    client.set(key, client.get(key)[:-4])


def cut_front(client: redis.Redis) -> None:
    client.set("models/gpt:header:0", client.get("models/gpt:header:0")[:-4])


def retype_data(client: redis.Redis) -> None:
    client.delete(key := _data_key(client, "layer.weight"))
    client.lpush(key, b"x")


def scribble_front(client: redis.Redis) -> None:
    client.setrange("models/gpt:header:0", 0, b"\xff" * 100)


def forge_count(client: redis.Redis) -> None:
    client.setrange("models/gpt:header:0", 57, b"\xff" * 8)


def forge_index_length(client: redis.Redis) -> None:
    client.setrange("models/gpt:header:0", 65, b"\xff" * 7 + b"\x7f")


def flush(client: redis.Redis) -> None:
    client.flushall()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lose_data, errors.SourceTruncated),
        (lose_header, errors.SourceTruncated),
        (cut_data, errors.SourceTruncated),
        (cut_front, errors.SourceTruncated),
        (retype_data, errors.MalformedArtifact),
        (scribble_front, errors.MalformedArtifact),
        (forge_count, errors.MalformedArtifact),
        (forge_index_length, errors.MalformedArtifact),
        (flush, errors.SourceNotFound),
    ],
)
def test_damage_is_told_when_the_source_is_opened(
    damage: Callable[[redis.Redis], None],
    expected: type[errors.WarmshelfError],
    store: Callable[..., Path],
    opened: Callable[[str], OpenSource],
    server: RedisServer,
) -> None:
    """S16, B19: tensorizer's own reader loads several of these without a word."""
    store(STATES["plain"](), "models/gpt")
    with server.client() as client:
        damage(client)
    with pytest.raises(expected):
        opened("models/gpt")


def test_what_happens_to_an_open_model_is_told_when_it_is_read(
    store: Callable[..., Path], opened: Callable[[str], OpenSource], server: RedisServer
) -> None:
    path = store(STATES["plain"](), "models/gpt")
    size = path.stat().st_size
    with opened("models/gpt") as source, server.client() as client:
        before = source.fingerprint(["model.tensors"])
        key = _data_key(client, "layer.weight")
        data = client.get(key)
        client.set(key, data[:-4])
        assert source.fingerprint(["model.tensors"]) != before
        with pytest.raises(errors.SourceChangedDuringLoad):
            source.read("model.tensors", 0, size)
        client.set(key, data)
        assert source.fingerprint(["model.tensors"]) == before
        assert source.read("model.tensors", 0, size) == path.read_bytes()
        client.flushall()
        with pytest.raises(errors.SourceNotFound):
            source.read("model.tensors", 0, size)


def test_half_of_another_model_over_the_first_is_refused(
    store: Callable[..., Path], opened: Callable[[str], OpenSource]
) -> None:
    """Written without ``force``, tensorizer keeps old tensors below a new front: here their hashes tell."""
    store({"w": torch.zeros(64)}, "models/gpt")
    store({"w": torch.ones(64)}, "models/gpt")
    with opened("models/gpt") as source:
        assert dict(source.files())  # equal in shape: only the bytes are old, and the hashes beside them
        found = detect(source, FormatLimits())
        entry = found.entries[0]
        data = source.read("model.tensors", entry.offset_bytes, entry.size_bytes)
        assert data == bytes(256)
        for check in found.checks:
            check.check_sha256([data])
    store({"w": torch.ones(65)}, "models/gpt")
    with pytest.raises(errors.WarmshelfError) as caught, opened("models/gpt") as source:
        detect(source, FormatLimits())
    assert caught.value.reason in ("SOURCE_TRUNCATED", "MALFORMED_ARTIFACT")


def test_our_layout_counts_where_both_lie_under_one_name(
    store: Callable[..., Path],
    redis_opener: Callable[..., RedisOpener],
    server: RedisServer,
    tmp_path: Path,
) -> None:
    store({"w": torch.zeros(64)}, "models/gpt")
    (tmp_path / "config.json").write_text("{}")
    uri = write_directory(server.uri("models"), "gpt", tmp_path / "config.json")
    opener = redis_opener(server.uri("models"))
    for asked, names in (
        (uri, ["config.json"]),
        (f"{uri}?layout=warmshelf", ["config.json"]),
        (f"{uri}?layout=tensorizer", ["model.tensors"]),
    ):
        with opener.open(asked) as source:
            assert list(source.files()) == names

"""What tensorizer's ``to_redis`` wrote is read as its own reader reads it."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import redis
import torch
from tensorizer import TensorDeserializer, TensorSerializer, stream_io

from kit.redis_server import RedisServer
from warmshelf import errors
from warmshelf.dtypes import DTYPES
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.detect import detect
from warmshelfd.formats.tensorizer_pieces import tensor_pieces
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
    with stream_io.open_stream(f"redis://{server.host}:{server.port}/{prefix}") as stream:
        with TensorDeserializer(stream, device="cpu", verify_hash=True) as tensors:
            return {name: tensor.clone() for name, tensor in tensors.items()}

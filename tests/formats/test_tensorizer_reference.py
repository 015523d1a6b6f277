"""Our reading of `.tensors` files against that of the tensorizer library, which is the oracle."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import io
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.tensors_file import WRITERS_INDEX_BYTES, Written, tensors_file
from warmshelf.dtypes import DTYPES
from warmshelf.errors import UnsupportedFormat, WarmshelfError
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.tensorizer import TensorizerFormat

torch = importlib.import_module("torch")
tensorizer = importlib.import_module("tensorizer")

Meaning = dict[str, tuple[str, tuple[int, ...], bytes]]

BY_TORCH_NAME = {row.torch_name: row for row in DTYPES.values() if row.torch_name}


class OneFile:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def files(self) -> dict[str, int]:
        return {"m.tensors": len(self.content)}

    def read(self, name: str, offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= len(self.content)
        return self.content[offset : offset + size]


class Buffer(io.BytesIO):
    """Keeps what was written when the writer closes it."""

    content = b""

    def close(self) -> None:
        self.content = self.content or self.getvalue()
        super().close()


def written(write: Callable[[Any], None]) -> bytes:
    """Return the file that the library writes."""
    buffer = Buffer()
    serializer = tensorizer.TensorSerializer(buffer)
    write(serializer)
    serializer.close()
    return buffer.content


def raw_bytes(tensor: Any) -> bytes:
    dense = tensor.detach().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size()) if dense.numel() else b""


def described(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    row = BY_TORCH_NAME[str(tensor.dtype).removeprefix("torch.")]
    shape = tuple(tensor.shape)
    if shape and row.packed > 1:
        shape = (*shape[:-1], shape[-1] * row.packed)
    return row.name, shape, raw_bytes(tensor)


def called(name: str | tuple[str | int, ...]) -> str:
    return name if isinstance(name, str) else json.dumps(name, separators=(",", ":"))


def read_theirs(content: bytes) -> Meaning | None:
    """Return what the library reads in a file, hashes checked, or None if it refuses it in any way."""
    try:
        with tensorizer.TensorDeserializer(io.BytesIO(content), device="cpu", lazy_load=True, num_readers=1) as reader:
            tensors = list(reader.read_tensors(verify_hash=True))
    except Exception:
        return None
    return {called(name): described(tensor) for _, _, name, tensor in tensors}


def read_ours(content: bytes) -> Meaning | None:
    """Return what we read in a file, hashes checked, or None if we refuse it with a typed error."""
    try:
        inspected = TensorizerFormat().inspect(OneFile(content), FormatLimits())
        views = [memoryview(content)[e.offset_bytes : e.offset_bytes + e.size_bytes] for e in inspected.entries]
        for check, view in zip(inspected.checks, views, strict=True):
            check.check_crc32(zlib.crc32(view), len(view))
            check.check_sha256([view])
    except WarmshelfError:
        return None
    return {e.name: (e.dtype, e.shape, bytes(view)) for e, view in zip(inspected.entries, views, strict=True)}


def tensor_of(dtype: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Return a tensor of any bits; only those of booleans are tame."""
    size = dtype.itemsize
    for dim in shape:
        size *= dim
    raw = bytes((31 * i + seed) % 256 for i in range(size))
    if dtype == torch.bool:
        raw = bytes(b & 1 for b in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def test_a_file_of_every_dtype_is_read_exactly() -> None:
    """B22, B23, B25: dtype, shape and bits, also of scalars, empty tensors and odd lengths."""
    state = {}
    for seed, (torch_name, row) in enumerate(BY_TORCH_NAME.items()):
        for shape in ((), (3, 5), (7,), (0, 4), (0,)):
            if shape or row.packed == 1:
                state[f"{torch_name}.{shape}"] = tensor_of(getattr(torch, torch_name), shape, seed)
    content = written(lambda to: to.write_state_dict(state))
    assert read_ours(content) == {name: described(tensor) for name, tensor in state.items()}


def test_of_every_dtype_the_library_reads_the_same() -> None:
    """Empty tensors are left out: where numpy has not their dtype, the library cannot read what it wrote."""
    state = {name: tensor_of(getattr(torch, name), (3, 5), seed) for seed, name in enumerate(BY_TORCH_NAME)}
    content = written(lambda to: to.write_state_dict(state))
    ours = read_ours(content)
    assert ours is not None
    assert len(ours) == len(BY_TORCH_NAME)
    assert ours == read_theirs(content)


class Tied(torch.nn.Module):
    """Has a parameter and a buffer of its own, a persistent buffer below, and a weight that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("steps", torch.arange(3))
        self.embed = torch.nn.Embedding(5, 3, dtype=torch.bfloat16)
        self.norm = torch.nn.BatchNorm1d(3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_a_module_is_read_as_it_was_written() -> None:
    """B12: shared weights are written twice, and both names are there."""
    module = Tied()
    content = written(lambda to: to.write_module(module))
    ours = read_ours(content)
    assert ours is not None
    assert ours == read_theirs(content)
    plain = {name.removeprefix("."): tensor for name, tensor in ours.items()}
    assert plain == {name: described(tensor) for name, tensor in module.state_dict().items()}
    assert {".own", ".steps"} <= ours.keys()
    assert ours["embed.weight"] == ours["head.weight"]


def test_nested_dicts_and_lists_are_read_with_their_paths() -> None:
    w = torch.arange(4, dtype=torch.int16)
    state = {"layers": [{"w é": w}, {"w é": w + 1}], "head": w + 2, 'odd"key\n': {"": w + 3}}
    content = written(lambda to: to.write_state_dict(state))
    ours = read_ours(content)
    assert ours is not None
    assert ours == read_theirs(content)
    assert set(ours) == {
        '["layers",0,"w \\u00e9"]',
        '["layers",1,"w \\u00e9"]',
        "head",
        '["odd\\"key\\n",""]',
    }


def test_a_file_written_in_several_calls_is_read() -> None:
    def write(to: Any) -> None:
        to.write_tensor(0, "first", tensorizer.serialization.TensorType.STATE_DICT, torch.ones(3).half())
        to.write_state_dict({"second": torch.ones(5, 2).t(), "third": torch.tensor(True)})
        to.write_state_dict({"fourth": torch.zeros(0, 1 << 33)})

    content = written(write)
    ours = read_ours(content)
    assert ours is not None
    assert list(ours) == ["first", "second", "third", "fourth"]
    assert ours == read_theirs(content)


def test_meta_tensors_are_refused() -> None:
    content = written(lambda to: to.write_state_dict({"there": torch.ones(2), "not": torch.empty(4, device="meta")}))
    with pytest.raises(UnsupportedFormat, match="tensor 'not' has a shape of 16 bytes, but none of them"):
        TensorizerFormat().inspect(OneFile(content), FormatLimits())


WRITTEN = [
    Written(b"a.weight", b"<f4", (2, 3), bytes(range(24))),
    Written(b"scalar", b"<i8", (), bytes(range(8))),
    Written(b"none", b"<f2", (0, 4), b""),
    Written(b"flags", b"|b1", (3,), b"\1\0\1"),
    Written(b"half", b"<V2\0torch.bfloat16", (5,), bytes(range(10))),
    Written(b"eighth", b"|V1\0torch.float8_e5m2", (3,), bytes(range(3))),
]

EVERY_RELEASE_WRITES = "36bb90aa61f9141a1fde18ed60b35a56253be70a1e59d9091384af6b077e0967"
"""SHA-256 of the file, as tried with 2.0.0, 2.1.2, 2.2.0, 2.3.0, 2.4.0, 2.5.1, 2.6.0, 2.7.2, 2.8.1, 2.9.3, 2.10.1,
2.11.1 and 2.12.1: whatever a release added, it did not change what the others write."""


def test_every_release_writes_the_same_file_and_it_is_read() -> None:
    state = {
        "a.weight": torch.frombuffer(bytearray(range(24)), dtype=torch.float32).reshape(2, 3),
        "scalar": torch.frombuffer(bytearray(range(8)), dtype=torch.int64).reshape(()),
        "none": torch.empty(0, 4, dtype=torch.float16),
        "flags": torch.tensor([True, False, True]),
        "half": torch.frombuffer(bytearray(range(10)), dtype=torch.bfloat16),
        "eighth": torch.arange(3, dtype=torch.uint8).view(torch.float8_e5m2),
    }
    content = written(lambda to: to.write_state_dict(state))
    assert hashlib.sha256(content).hexdigest() == EVERY_RELEASE_WRITES
    assert content == tensors_file(WRITTEN, version=2, index_bytes=WRITERS_INDEX_BYTES).content
    assert read_ours(content) == {name: described(tensor) for name, tensor in state.items()}


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
SPELLINGS = {"<f4": 4, "|u1": 1, "|b1": 1, "<i8": 8, "<c8": 8, "<V2\0torch.bfloat16": 2, "|V1\0torch.float8_e4m3fn": 1}


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A well-formed file of up to four tensors."""
    tensors = []
    for i, name in enumerate(draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))):
        dtype = draw(st.sampled_from(sorted(SPELLINGS)))
        smallest = int("V" in dtype)  # empty ones of these the library writes but cannot read
        shape = tuple(draw(st.lists(st.integers(smallest, 4), max_size=3)))
        size = SPELLINGS[dtype]
        for dim in shape:
            size *= dim
        data = bytes((j + i) % 2 for j in range(size))
        tensors.append(Written(name.encode(), dtype.encode(), shape, data, draw(st.integers(0, 2)), i))
    version = draw(st.sampled_from([1, 2, 4, 5]))
    return tensors_file(tensors, version=version).content


@settings(deadline=None)
@given(files())
def test_a_well_formed_file_means_what_the_library_reads(content: bytes) -> None:
    theirs = read_theirs(content)
    assert theirs is not None
    assert read_ours(content) == theirs


@settings(deadline=None)
@given(files(), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))
def test_what_we_accept_the_library_accepts_and_means_the_same(
    content: bytes, changes: list[tuple[float, int]]
) -> None:
    """B19, B20: never more than the reference, never something else, never another kind of error."""
    changed = bytearray(content)
    for where, new in changes:
        changed[int(where * len(changed))] = new
    ours = read_ours(bytes(changed))
    assert ours is None or ours == read_theirs(bytes(changed))

"""What the client makes of tensors to be pushed, judged by the libraries whose tensors and files they are."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.models import pattern
from warmshelf import errors
from warmshelf._push import chunks
from warmshelf._push_files import DiskFile, chosen, files_of_path, files_of_tensors
from warmshelf._push_tensors import tensor_bytes
from warmshelf.dtypes import DTYPES, size_bytes

_SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
_DTYPES = st.sampled_from([row for name, row in DTYPES.items() if row.bits >= 8 and name != "C128"])
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")


def whole(files: list[Any]) -> dict[str, bytes]:
    return {file.name: b"".join(file.pieces(0)) for file in files}


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(_NAMES, st.tuples(_DTYPES, _SHAPES), min_size=1, max_size=8))
def test_what_is_written_is_what_the_safetensors_library_reads(drawn: dict[str, Any]) -> None:
    safetensors = pytest.importorskip("safetensors")
    tensors = {
        name: (row.name, shape, pattern(number, size_bytes(row, shape)))
        for number, (name, (row, shape)) in enumerate(drawn.items())
    }
    (file,) = files_of_tensors(tensors, None, is_adapter=False)
    found = dict(safetensors.deserialize(b"".join(file.pieces(0))))
    assert {n: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for n, t in found.items()} == tensors


def test_torch_tensors_of_every_dtype_keep_their_bits() -> None:
    torch = pytest.importorskip("torch")
    rows = [
        row for row in DTYPES.values() if row.torch_name and isinstance(getattr(torch, row.torch_name, 0), torch.dtype)
    ]
    assert len(rows) > 15
    for row in rows:
        data = torch.frombuffer(bytearray(pattern(7, 96)), dtype=torch.uint8)
        tensor = (data % 2 if row.name == "BOOL" else data).view(getattr(torch, row.torch_name)).reshape(2, -1)
        found = tensor_bytes("t", tensor)
        assert found.spec.dtype == row.name
        assert found.spec.size_bytes == 96 == len(found.view())
        assert found.view() == bytes(tensor.view(torch.uint8).flatten().tolist())
        assert found.spec.shape == (2, tensor.shape[1] * row.packed)
        turned = tensor_bytes("t", tensor.t())
        assert turned.view() == bytes(tensor.t().contiguous().view(torch.uint8).flatten().tolist())
        assert tensor_bytes("t", tensor[:0]).view() == b""


def test_torch_scalars_parameters_and_conjugates_are_taken_and_what_has_no_bytes_is_refused() -> None:
    torch = pytest.importorskip("torch")
    assert tensor_bytes("t", torch.tensor(1.0)).spec.shape == ()
    assert tensor_bytes("t", torch.nn.Parameter(torch.ones(2))).view() == bytes.fromhex("0000803f") * 2
    value = torch.tensor([1 + 2j])
    assert bytes(tensor_bytes("t", value.conj()).view()) == bytes(
        value.conj().resolve_conj().view(torch.uint8).tolist()
    )
    for wrong in (torch.ones(2, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(errors.InvalidRequest):
            tensor_bytes("t", wrong)


def test_numpy_arrays_keep_their_bits_and_other_byte_orders_are_refused() -> None:
    numpy = pytest.importorskip("numpy")
    for row in DTYPES.values():
        if row.numpy_name:
            array = numpy.frombuffer(pattern(3, 64), dtype="u1").copy()
            array = (array % 2 if row.name == "BOOL" else array).view(row.numpy_name).reshape(2, -1)
            for one in (array, array.T, array[:, ::2], array[:0], array[0, 0:1].reshape(())) if array.shape[1] else ():
                found = tensor_bytes("t", one)
                assert (found.spec.dtype, found.spec.shape) == (row.name, one.shape)
                assert bytes(found.view()) == one.tobytes()
    for wrong in (numpy.zeros(1, ">f4"), numpy.zeros(1, "O"), numpy.zeros(1, "M8[s]"), numpy.zeros(1, "S4")):
        with pytest.raises(errors.UnsupportedDtype):
            tensor_bytes("t", wrong)


@pytest.mark.parametrize(
    "tensor", [1, "x", b"", ("F32",), ("F32", (1,), b"123"), ("F32", (-1,), b""), ("F32", "a", b"")]
)
def test_what_is_no_tensor_is_refused_by_name(tensor: object) -> None:
    with pytest.raises(errors.InvalidRequest, match="'t'"):
        tensor_bytes("t", tensor)


def test_pushing_imports_neither_torch_nor_numpy() -> None:
    code = """
import sys
from warmshelf._push_files import files_of_tensors
files_of_tensors({"w": ("F32", (1,), b"1234")}, {}, is_adapter=False)
print(sorted({"torch", "numpy", "safetensors"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 30), st.integers(0, 60))
def test_chunks_are_the_same_bytes_and_as_long_as_may_be(pieces: list[bytes], chunk_bytes: int, start: int) -> None:
    tensors = {f"{i}": ("U8", (len(piece),), piece) for i, piece in enumerate(pieces)} or {"x": ("U8", (0,), b"")}
    (file,) = files_of_tensors(tensors, None, is_adapter=False)
    data = b"".join(file.pieces(0))
    assert len(data) == file.size_bytes
    made = list(chunks(file.pieces(start), chunk_bytes))
    assert b"".join(made) == data[start:]
    assert {len(chunk) for chunk in made[:-1]} <= {chunk_bytes}


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        ("model.safetensors x.safetensors", "model.safetensors"),
        ("a.safetensors b.safetensors c.tensors d.bin", "a.safetensors b.safetensors"),
        ("c.tensors", "c.tensors"),
        ("adapter_config.json adapter_model.safetensors adapter_model.bin x.safetensors", "adapter_model.safetensors"),
        ("adapter_config.json adapter_model.tensors", "adapter_model.tensors"),
        ("model.safetensors.index.json model.safetensors s1 s2", "s1 s2"),
        ("z.safetensors.index.json z.safetensors s1 s2", "s1 s2"),
    ],
)
def test_of_a_directory_those_weights_are_sent_that_the_daemon_would_read(names: str, weights: str) -> None:
    found = {name: DiskFile(name, f"/{name}", 1, 0) for name in [*names.split(), "config.json", "README.md", "run.py"]}
    small = {name for name in names.split() if name.endswith(".json")} | {"config.json"}
    sent = chosen(found, lambda _: ["s1", "s2"])
    assert set(sent) == small | set(weights.split())


def test_a_file_that_changes_while_it_is_sent_ends_the_push(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(random.Random(1).randbytes(3 << 20))
    (file,) = files_of_path(path)
    pieces = file.pieces(0)
    next(pieces)
    path.write_bytes(b"shorter")
    with pytest.raises(errors.InvalidRequest, match="changed"):
        list(pieces)

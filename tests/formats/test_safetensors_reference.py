"""Our reading of safetensors files against that of the safetensors library, which is the oracle."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from warmshelf.dtypes import DTYPES
from warmshelf.errors import WarmshelfError
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.detect import detect

safetensors = importlib.import_module("safetensors")

Detect = Callable[..., Inspected]
Meaning = dict[str, tuple[str, tuple[int, ...], bytes]]

BITS = {"BOOL": 8, "U8": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "BF16": 16, "F32": 32, "I64": 64, "C64": 64}
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).filter("__metadata__".__ne__)


class OneFile:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def files(self) -> dict[str, int]:
        return {"m.safetensors": len(self.content)}

    def read(self, name: str, offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= len(self.content)
        return self.content[offset : offset + size]


def read_ours(content: bytes) -> Meaning | None:
    """Return what we read in a file, or None if we refuse it with a typed error."""
    try:
        inspected = detect(OneFile(content), FormatLimits())
    except WarmshelfError:
        return None
    return {
        e.name: (e.dtype, e.shape, content[e.offset_bytes : e.offset_bytes + e.size_bytes]) for e in inspected.entries
    }


def read_theirs(content: bytes) -> Meaning | None:
    try:
        pairs = safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return None
    return {name: (info["dtype"], tuple(info["shape"]), bytes(info["data"])) for name, info in pairs}


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A well-formed file of up to six tensors."""
    header: dict[str, object] = {}
    end = 0
    if draw(st.booleans()):
        header["__metadata__"] = draw(st.dictionaries(NAMES, NAMES, max_size=2))
    for name in draw(st.lists(NAMES, unique=True, min_size=1, max_size=6)):
        dtype = draw(st.sampled_from(sorted(BITS)))
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        if BITS[dtype] % 8:
            shape.append(8)
        begin = end
        end += BITS[dtype] * product(shape) // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    raw = json.dumps(header, ensure_ascii=draw(st.booleans())).encode() + b" " * draw(st.integers(0, 3))
    return struct.pack("<Q", len(raw)) + raw + bytes(i % 251 for i in range(end))


def product(shape: list[int]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def change(content: bytes, at: int, cut: int, new: bytes, keep_length: bool) -> bytes:
    """Replace some bytes; ``keep_length`` writes the header's length anew so that it is still right."""
    changed = content[:at] + new + content[at + cut :]
    if keep_length and at >= 8:
        length = struct.unpack("<Q", content[:8])[0] + len(new) - cut
        changed = struct.pack("<Q", max(length, 0)) + changed[8:]
    return changed


@given(files())
def test_a_well_formed_file_means_what_the_library_reads(content: bytes) -> None:
    theirs = read_theirs(content)
    assert theirs is not None
    assert read_ours(content) == theirs


SNIPPETS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"-", b"0", b"1", b"9", b".5", b"e1", b" ", b"\0", b"null"]


@given(
    files(),
    st.integers(0, 400),
    st.integers(0, 3),
    st.sampled_from(SNIPPETS) | st.binary(max_size=3),
    st.booleans(),
)
@example(struct.pack("<Q", 54) + b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[-0,1]}}x', 0, 0, b"", False)
def test_what_we_accept_the_library_accepts_and_means_the_same(
    content: bytes, at: int, cut: int, new: bytes, keep_length: bool
) -> None:
    """B20: never more than the reference, never something else, never another kind of error."""
    changed = change(content, at % len(content), cut, new, keep_length)
    ours = read_ours(changed)
    assert ours is None or ours == read_theirs(changed)


def test_a_file_of_every_torch_dtype_is_read_exactly(detect_in: Detect) -> None:
    """B22, B23, B25: dtype, shape and bits, also of scalars and empty tensors."""
    torch = importlib.import_module("torch")
    torch_save = importlib.import_module("safetensors.torch").save
    tensors: dict[str, Any] = {}
    expected: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for row in DTYPES.values():
        dtype = getattr(torch, row.torch_name, None) if row.torch_name else None
        if dtype is None or row.name == "C128":
            continue
        width = row.bits * row.packed // 8
        for kind, shape in {"matrix": (3, 5), "scalar": (), "empty": (0, 4), "flat": (0,)}.items():
            if row.packed > 1 and kind == "scalar":
                continue
            raw = bytes((7 * i + width) % 256 for i in range(product(list(shape)) * width))
            if row.name == "BOOL":
                raw = bytes(b & 1 for b in raw)
            tensor = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            tensors[f"{row.name}.{kind}"] = tensor.view(dtype).reshape(shape)
            stored = (*shape[:-1], shape[-1] * row.packed) if shape else shape
            expected[f"{row.name}.{kind}"] = (row.name, stored, raw)
    content = torch_save(tensors)
    entries = detect_in({"m.safetensors": content}).entries
    assert {
        e.name: (e.dtype, e.shape, content[e.offset_bytes : e.offset_bytes + e.size_bytes]) for e in entries
    } == expected

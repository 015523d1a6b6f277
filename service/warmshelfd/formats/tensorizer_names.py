"""What names and dtypes in a ``.tensors`` file are called here.

A plain name is UTF-8 as it stands. The name of a tensor in nested dicts and lists is
a record separator and the path as a JSON array, such as ``["layers",0,"weight"]``;
here it is the text of that array, which is one path's only spelling.

A dtype is what numpy calls it (``<f4``). Where numpy has none, it is an opaque one of
the same size, a NUL, and what torch calls it (``<V2``, ``torch.bfloat16``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from warmshelf.dtypes import DTYPES, Dtype

_PATH_MARK = "\x1e"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_ONE_BYTE = {"bool": "|b1", "u1": "|u1", "i1": "|i1"}
"""How numpy writes the dtypes that have no byte order; all others it writes as we do."""

_OPAQUE_BYTES = (1, 2, 4, 8)
"""Sizes that an opaque dtype can have: those of integers."""


def tensor_name(raw: bytes, bytes_max: int) -> str:
    """Return the name that these bytes are.

    Raises:
        ValueError: they are none; says why, without the file.
    """
    if not raw:
        raise ValueError("has no name")
    if len(raw) > bytes_max:
        raise ValueError(f"has a name of {len(raw)} bytes, at most {bytes_max} are allowed")
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise ValueError(f"has a name that is not UTF-8: {raw[:64]!r}") from None
    if is_path(raw):
        name = name[1:]
        if not _is_one_spelling(name):
            raise ValueError(f"has a path that no writer writes: {name[:64]!r}")
    if _CONTROL.search(name):
        raise ValueError(f"has a name that holds a control character: {name[:64]!r}")
    return name


def is_path(raw: bytes) -> bool:
    """Say whether these bytes are a path in nested dicts and lists."""
    return raw.startswith(_PATH_MARK.encode())


def _is_one_spelling(text: str) -> bool:
    """Say whether the text is a path spelled as writers spell it: no space, nothing but ASCII."""
    try:
        path = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(path, list)
        and all(type(part) is str or (type(part) is int and part >= 0) for part in path)  # True is an int too
        and (len(path) > 1 or {*map(type, path)} == {int})  # one string alone is a plain name
        and json.dumps(path, separators=(",", ":")) == text
    )


def _spellings(row: Dtype) -> Iterator[bytes]:
    if row.numpy_name:
        yield _ONE_BYTE.get(row.numpy_name, row.numpy_name).encode()
    size = row.bits * row.packed // 8
    if row.torch_name and size in _OPAQUE_BYTES:
        order = "|" if size == 1 else "<"
        yield f"{order}V{size}\0torch.{row.torch_name}".encode()


DTYPE_BY_SPELLING: Mapping[bytes, Dtype] = {text: row for row in DTYPES.values() for text in _spellings(row)}
"""Every dtype that is read, by how it stands in the file."""


def shown_dtype(raw: bytes) -> str:
    """Return how an unknown dtype is shown: short, printable."""
    return ascii(raw.replace(b"\0", b" ").decode("latin-1"))[1:-1][:64]

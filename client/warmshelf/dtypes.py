"""The dtypes a tensor can have, by their safetensors names.

One row each: how many bits an element takes, what alignment a view of it
needs, and what torch and numpy call it. Imports neither.

Sources: safetensors' ``Dtype`` (names and bits), torch's dtype names. The names
after the gap are not in safetensors' list; torch and tensorizer have them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    Attributes:
        name: safetensors name, such as ``BF16``.
        bits: bits per element of the shape.
        align_bytes: what a view of it must be aligned to; a power of two.
        torch_name: attribute of ``torch``, or "" if torch has none.
        numpy_name: what ``numpy.dtype`` takes, or "" if numpy has none.
        packed: elements of the shape per element of torch's shape, whose last
            dimension is that many times smaller (2 for packed fp4).
    """

    name: str
    bits: int
    align_bytes: int
    torch_name: str
    numpy_name: str
    packed: int = 1


_ROWS = (
    Dtype("BOOL", 8, 1, "bool", "bool"),
    Dtype("F4", 4, 1, "float4_e2m1fn_x2", "", packed=2),
    Dtype("F6_E2M3", 6, 1, "", ""),
    Dtype("F6_E3M2", 6, 1, "", ""),
    Dtype("U8", 8, 1, "uint8", "u1"),
    Dtype("I8", 8, 1, "int8", "i1"),
    Dtype("F8_E5M2", 8, 1, "float8_e5m2", ""),
    Dtype("F8_E4M3", 8, 1, "float8_e4m3fn", ""),
    Dtype("F8_E8M0", 8, 1, "float8_e8m0fnu", ""),
    Dtype("F8_E4M3FNUZ", 8, 1, "float8_e4m3fnuz", ""),
    Dtype("F8_E5M2FNUZ", 8, 1, "float8_e5m2fnuz", ""),
    Dtype("I16", 16, 2, "int16", "<i2"),
    Dtype("U16", 16, 2, "uint16", "<u2"),
    Dtype("F16", 16, 2, "float16", "<f2"),
    Dtype("BF16", 16, 2, "bfloat16", ""),
    Dtype("I32", 32, 4, "int32", "<i4"),
    Dtype("U32", 32, 4, "uint32", "<u4"),
    Dtype("F32", 32, 4, "float32", "<f4"),
    Dtype("C64", 64, 8, "complex64", "<c8"),
    Dtype("F64", 64, 8, "float64", "<f8"),
    Dtype("I64", 64, 8, "int64", "<i8"),
    Dtype("U64", 64, 8, "uint64", "<u8"),
    Dtype("C128", 128, 16, "complex128", "<c16"),
)

DTYPES: dict[str, Dtype] = {row.name: row for row in _ROWS}
"""Every dtype by its name."""


def size_bytes(dtype: Dtype, shape: tuple[int, ...]) -> int:
    """Return the bytes that a dense row-major tensor takes.

    Raises:
        ValueError: the elements do not fill whole bytes, or a dimension is negative.
    """
    bits = dtype.bits
    for dim in shape:
        if dim < 0:
            raise ValueError(f"negative dimension {dim}")
        bits *= dim
    if bits % 8:
        raise ValueError(f"{bits} bits do not fill whole bytes")
    return bits // 8

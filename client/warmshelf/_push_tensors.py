"""What a tensor to be pushed is: dtype, shape and bytes, of torch, of numpy, or said outright.

Imports neither torch nor numpy: who hands over a tensor of theirs has imported them.
Nothing is cast. A tensor that is not dense and row-major in host memory is copied when
its bytes are wanted, and that copy is let go of before the next one is made.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warmshelf.dtypes import DTYPES, size_bytes
from warmshelf.errors import InvalidRequest, UnsupportedDtype
from warmshelf.layout import TensorSpec

_BY_TORCH = {row.torch_name: row for row in DTYPES.values() if row.torch_name}
_BY_NUMPY = {row.numpy_name.lstrip("<"): row for row in DTYPES.values() if row.numpy_name}


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor to be pushed; ``view`` gives its bytes, which may be a copy."""

    spec: TensorSpec
    view: Callable[[], memoryview]


def tensor_bytes(name: str, tensor: Any) -> TensorBytes:
    """Return what a tensor is.

    Args:
        name: its name.
        tensor: a torch tensor, a numpy array, or (dtype, shape, bytes) with a dtype such as ``BF16``.

    Raises:
        InvalidRequest: it is none of these, or its bytes are not what dtype and shape say.
        UnsupportedDtype: names tensor and dtype.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _of_torch(name, tensor, torch)
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _of_numpy(name, tensor, numpy)
    try:
        dtype, shape, data = tensor
        view, dims = memoryview(data), tuple(int(dim) for dim in shape)
    except (TypeError, ValueError):
        raise _refused(name, "is no torch tensor, no numpy array and no (dtype, shape, bytes)") from None
    if not view.c_contiguous:
        raise _refused(name, "has bytes that are not in one piece")
    spec = _spec(name, dtype, dims)
    if view.nbytes != spec.size_bytes:
        raise _refused(name, f"of {dtype} {list(dims)} takes {spec.size_bytes} bytes, there are {view.nbytes}")
    return TensorBytes(spec, lambda: view.cast("B") if view.nbytes else memoryview(b""))


def _of_torch(name: str, tensor: Any, torch: Any) -> TensorBytes:
    text = str(tensor.dtype).removeprefix("torch.")
    row = _BY_TORCH.get(text)
    if row is None:
        raise _unknown_dtype(name, text)
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise _refused(name, f"is {'on the meta device' if tensor.is_meta else tensor.layout}, and has no dense bytes")
    shape = tuple(tensor.shape)
    if row.packed > 1:
        if not shape:
            raise _refused(name, f"of {row.name} has no dimension, where elements come in groups of {row.packed}")
        shape = (*shape[:-1], shape[-1] * row.packed)

    def view() -> memoryview:
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return _memory(dense, dense.data_ptr(), dense.numel() * dense.element_size())

    return TensorBytes(_spec(name, row.name, shape), view)


def _memory(owner: Any, address: int, size: int) -> memoryview:
    """Return memory by its address, for torch knows dtypes that no buffer has; it lives as long as the view."""
    if not size:
        return memoryview(b"")
    array = (ctypes.c_ubyte * size).from_address(address)
    array.owner = owner  # type: ignore[attr-defined]  # ctypes' arrays take attributes
    return memoryview(array).cast("B")


def _of_numpy(name: str, array: Any, numpy: Any) -> TensorBytes:
    text = array.dtype.str.lstrip("<|")
    row = _BY_NUMPY.get("bool" if text == "b1" else text) or _BY_TORCH.get(
        array.dtype.name
    )  # ml_dtypes' have its names
    if row is None or not array.dtype.isnative or row.bits != 8 * array.dtype.itemsize:
        raise _unknown_dtype(name, str(array.dtype))

    def view() -> memoryview:
        return memoryview(numpy.ascontiguousarray(array).reshape(-1).view("u1"))

    return TensorBytes(_spec(name, row.name, tuple(array.shape)), view)


def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    row = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if row is None:
        raise _unknown_dtype(name, str(dtype))
    try:
        return TensorSpec(name, row.name, shape, 0, size_bytes(row, shape))
    except ValueError as error:
        raise _refused(name, f"of {dtype} {list(shape)}: {error}") from error


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"tensor {name!r} {why}", tensor=name)


def _unknown_dtype(name: str, dtype: str) -> UnsupportedDtype:
    return UnsupportedDtype(f"tensor {name!r} has dtype {dtype}, which cannot be pushed", tensor=name, dtype=dtype)

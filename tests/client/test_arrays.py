"""Arrays and tensors have the bits, dtypes and shapes of the artifact, and copy nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import warmshelf
import warmshelf.numpy
import warmshelf.torch
from kit.models import Tensor, pattern
from kit.segments import SegmentFile, write_segment
from kit.standin import StandIn
from warmshelf.dtypes import DTYPES
from warmshelf.errors import SegmentCorrupt, UnsupportedDtype

LeaseOf = Callable[..., warmshelf.Lease]


@pytest.fixture(params=["mapped", "streamed"])
def lease_of(
    request: pytest.FixtureRequest, stand_in: StandIn, put: Callable[[SegmentFile], SegmentFile]
) -> Iterator[LeaseOf]:
    """Leases hand-written tensors, by either transport."""
    if request.param == "streamed":
        stand_in.arena_directory = ""
    with warmshelf.connect(stand_in.address, timeout=20) as shelf:

        def acquire(
            tensors: dict[str, Tensor], ties: dict[str, str] | None = None, align_bytes: int = 64
        ) -> warmshelf.Lease:
            stand_in.add("org/a", put(write_segment(tensors, ties=ties, align_bytes=align_bytes)))
            lease = shelf.acquire("org/a")
            assert lease.transport == request.param
            return lease

        yield acquire


def bits(count: int) -> bytes:
    """Every byte value, so NaN payloads, subnormals, -0.0 and infinities of the small dtypes are among them."""
    return bytes(i * 37 % 256 for i in range(count))


TORCH_NAMES = sorted(name for name, row in DTYPES.items() if row.torch_name and hasattr(torch, row.torch_name))


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_torch_tensors_have_the_dtype_shape_and_bits(lease_of: LeaseOf, name: str) -> None:
    """B22, B23, B25: scalars and empty ones too, first, between and last."""
    row = DTYPES[name]
    shapes = {"first": (0, 4), "matrix": (6, 128), "vector": (3,), "empty": (2, 0), "scalar": (), "last": (0,)}
    if row.packed > 1:
        del shapes["scalar"]  # half a byte
    stored = {each: (*shape[:-1], shape[-1] * row.packed) if shape else () for each, shape in shapes.items()}
    data = {each: bits(math.prod(shape) * row.bits // 8) for each, shape in stored.items()}
    tensors = warmshelf.torch.tensors(lease_of({each: (name, stored[each], data[each]) for each in shapes}))
    assert {each: tuple(tensor.shape) for each, tensor in tensors.items()} == shapes
    for each, tensor in tensors.items():
        assert tensor.dtype is getattr(torch, row.torch_name)
        assert bytes(tensor.reshape(-1).view(torch.uint8).tolist()) == data[each]


def test_an_empty_tensor_may_lie_anywhere_and_another_may_not(lease_of: LeaseOf) -> None:
    """B25."""
    odd: dict[str, Tensor] = {"byte": ("U8", (1,), b"x"), "empty": ("F32", (0, 4), b"")}
    assert tuple(warmshelf.torch.tensors(lease_of(odd, align_bytes=1))["empty"].shape) == (0, 4)
    with pytest.raises(SegmentCorrupt, match="'w' lies at 4097"):
        warmshelf.torch.tensors(lease_of({**odd, "w": ("F32", (1,), b"1234")}, align_bytes=1))


def test_bf16_bits_are_kept_whatever_they_mean(lease_of: LeaseOf) -> None:
    """B22: NaN payloads, -0.0, subnormals, infinities, an odd length."""
    words = [0x7FC1, 0xFFC1, 0x7F81, 0x8000, 0x0001, 0x7F80, 0xFF80]
    data = np.array(words, "<u2").tobytes()
    lease = lease_of({"w": ("BF16", (7,), data)})
    assert warmshelf.torch.tensors(lease)["w"].view(torch.int16).tolist() == [
        word - 65536 if word > 32767 else word for word in words
    ]
    array = warmshelf.numpy.arrays(lease)["w"]
    assert array.dtype == np.uint16
    assert array.tolist() == words


def test_tensors_outlive_their_lease(lease_of: LeaseOf) -> None:
    lease = lease_of({"w": ("U8", (600_000,), pattern(1, 600_000))})
    tensor = warmshelf.torch.tensors(lease)["w"]
    array = warmshelf.numpy.arrays(lease)["w"]
    lease.release()
    del lease
    assert bytes(tensor.numpy()) == pattern(1, 600_000)
    assert array.tobytes() == pattern(1, 600_000)


def test_nothing_is_copied_and_nothing_is_shared_beyond_the_lease(lease_of: LeaseOf) -> None:
    """B45: an engine scales in place."""
    lease = lease_of({"w": ("F32", (4,), np.ones(4, "<f4").tobytes())})
    warmshelf.torch.tensors(lease)["w"].mul_(2)
    assert warmshelf.numpy.arrays(lease)["w"].tolist() == [2, 2, 2, 2]
    other = lease_of({"w": ("F32", (4,), np.ones(4, "<f4").tobytes())})
    assert warmshelf.torch.tensors(other)["w"].tolist() == [1, 1, 1, 1]


def test_tied_names_share_their_memory(lease_of: LeaseOf) -> None:
    """B12."""
    lease = lease_of({"embed": ("F32", (2, 2), bits(16)), "other": ("F32", (1,), bits(4))}, {"head": "embed"})
    tensors = warmshelf.torch.tensors(lease)
    assert tensors["embed"].data_ptr() == tensors["head"].data_ptr()
    assert tensors["embed"].data_ptr() != tensors["other"].data_ptr()


@pytest.mark.parametrize(
    ("name", "shape", "data"), [("F6_E2M3", (4,), b"abc"), ("F4", (2, 3), b"abc"), ("F6_E3M2", (0,), b"")]
)
def test_a_dtype_that_torch_lacks_is_named_with_its_tensor(
    lease_of: LeaseOf, name: str, shape: tuple[int, ...], data: bytes
) -> None:
    """B23."""
    with pytest.raises(UnsupportedDtype, match=f"'w'.*{name}"):
        warmshelf.torch.tensors(lease_of({"w": (name, shape, data)}))


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_numpy_array_has_the_bits_and_never_a_wider_dtype(lease_of: LeaseOf, name: str) -> None:
    """B22, B23."""
    row = DTYPES[name]
    data = bits(3 * 8 * row.bits // 8)
    array = warmshelf.numpy.arrays(lease_of({"w": (name, (3, 8), data)}))["w"]
    assert array.tobytes() == data
    assert array.nbytes == len(data)
    if row.bits >= 8:
        assert array.shape == (3, 8)
        assert array.dtype.itemsize * 8 == row.bits
    if row.numpy_name:
        assert array.dtype == np.dtype(row.numpy_name)


@pytest.mark.parametrize(
    ("name", "shape", "data", "expected"),
    [
        ("F32", (), b"abcd", ()),
        ("BF16", (0, 4), b"", (0, 4)),
        ("F4", (2, 6), b"abcdef", (2, 3)),
        ("F4", (2, 3), b"abc", (3,)),
        ("F6_E2M3", (2, 4), b"abcdef", (6,)),
    ],
)
def test_a_numpy_array_has_the_documented_shape(
    lease_of: LeaseOf, name: str, shape: tuple[int, ...], data: bytes, expected: tuple[int, ...]
) -> None:
    """B25."""
    assert warmshelf.numpy.arrays(lease_of({"w": (name, shape, data)}))["w"].shape == expected

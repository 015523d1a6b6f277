"""A segment's bytes are read once, the same way however they came, and distrusted."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.models import pattern
from kit.segments import SegmentFile, write_segment
from warmshelf.errors import FormatTooNew, SegmentCorrupt
from warmshelf.image import SegmentImage


def test_every_tensor_and_file_is_there_bit_for_bit(segment: SegmentFile) -> None:
    """B25: scalars and empty tensors too."""
    image = SegmentImage(segment.data, len(segment.data))
    assert list(image.specs) == ["a.weight", "b.weight", "scalar", "empty"]
    assert image.tensor("a.weight") == pattern(1, 600_000)
    assert image.tensor("scalar") == pattern(3, 8)
    assert image.tensor("empty") == b""
    assert image.specs["empty"].shape == (0, 4)
    assert image.specs["scalar"].shape == ()
    assert image.files["config.json"] == b'\xef\xbb\xbf{"r": 1}'


def test_the_content_without_the_padding_is_enough(segment: SegmentFile) -> None:
    image = SegmentImage(bytearray(segment.content), segment.content_size_bytes)
    assert image.tensor("b.weight") == pattern(2, 20_000)
    assert image.layout == SegmentImage(segment.data, len(segment.data)).layout


def test_a_segment_of_no_bytes_at_all_has_its_empty_tensors() -> None:
    """B25: alone in an object."""
    segment = write_segment({"e": ("F32", (0,), b"")})
    assert SegmentImage(segment.data, len(segment.data)).tensor("e") == b""


def test_tied_names_share_a_range() -> None:
    segment = write_segment({"embed": ("F32", (4,), pattern(1, 16))}, ties={"head": "embed"})
    image = SegmentImage(segment.data, len(segment.data))
    assert image.specs["head"].offset_bytes == image.specs["embed"].offset_bytes


def test_an_unknown_name_is_a_key_error(segment: SegmentFile) -> None:
    with pytest.raises(KeyError):
        SegmentImage(segment.data, len(segment.data)).tensor("c.weight")


def test_two_tensors_of_one_name_are_refused() -> None:
    segment = write_segment({"w": ("U8", (1,), b"x")}, ties={"w": "w"})
    with pytest.raises(SegmentCorrupt, match="same name"):
        SegmentImage(segment.data, len(segment.data)).tensor("w")


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [("X9", (1,), b"x"), ("F32", (2,), b"four"), ("F4", (3,), b"xx"), ("I64", (-1,), b"12345678")],
)
def test_a_tensor_that_cannot_be_is_refused(dtype: str, shape: tuple[int, ...], data: bytes) -> None:
    segment = write_segment({"w": (dtype, shape, data)})
    image = SegmentImage(segment.data, len(segment.data))
    with pytest.raises(SegmentCorrupt, match="'w'"):
        _ = image.layout


def test_a_newer_format_is_refused_by_its_number(segment: SegmentFile) -> None:
    newer = write_segment({"w": ("U8", (1,), b"x")}, version=2)
    with pytest.raises(FormatTooNew, match="2"):
        SegmentImage(newer.data, len(newer.data))


HEAD_BYTES = 8 + 4 + 4 + 32 + 8 + 4 * 24 + 4  # up to the header's own CRC; zeros follow


@given(st.data())
def test_no_flipped_bit_outside_tensors_and_block_crcs_goes_unnoticed(data: st.DataObject) -> None:
    segment = write_segment({"w": ("U8", (3,), b"xyz")}, files={"config.json": b"{}"})
    header = SegmentImage(segment.content, segment.content_size_bytes).header
    places = [*range(HEAD_BYTES), *range(header.layout.offset, header.layout.end)]
    places += range(header.manifest.offset, header.manifest.end)
    broken = bytearray(segment.content)
    broken[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((SegmentCorrupt, FormatTooNew)):
        _ = SegmentImage(broken, len(broken)).files


@pytest.mark.parametrize("size", [0, 7, 4095, 4096, 5000])
def test_a_cut_segment_is_refused(segment: SegmentFile, size: int) -> None:
    """B19: never a shorter set of tensors."""
    with pytest.raises(SegmentCorrupt):
        SegmentImage(segment.data[:size], size)


def test_a_large_layout_is_read_fast_enough_to_be_read_at_every_acquire() -> None:
    segment = write_segment({f"model.layers.{i}.weight": ("BF16", (2, 2), b"12345678") for i in range(420)})
    best = 1.0
    for _ in range(5):
        image = SegmentImage(segment.data, len(segment.data))
        start = time.perf_counter()
        assert len(image.specs) == 420
        best = min(best, time.perf_counter() - start)
    assert best < 0.02  # about 1 ms on an idle machine

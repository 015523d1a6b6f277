"""The content digest is what its documentation says, byte for byte."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.digest import check_digest, combine
from warmshelf.errors import InvalidSpec

HASH = bytes(range(32))


def test_the_encoding_is_the_documented_one() -> None:
    hand_written = (
        b"\x13\0\0\0\0\0\0\0warmshelf content 1"
        b"\x01\0\0\0\0\0\0\0a\x04\0\0\0\0\0\0\0BF16\x10\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0"
        b"\x20\0\0\0\0\0\0\0" + HASH + b"\x02\0\0\0\0\0\0\0\xc3\xa4\x03\0\0\0\0\0\0\0I64\0\0\0\0\0\0\0\0"
        b"\x20\0\0\0\0\0\0\0" + HASH + b"\x02\0\0\0\0\0\0\0{}"
    )
    rows = [("ä", "I64", (), HASH), ("a", "BF16", (2, 3), HASH)]
    assert combine(rows, b"{}", hashlib.sha256()) == hashlib.sha256(hand_written).hexdigest()


rows = st.tuples(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["F32", "F64"]),
    st.lists(st.integers(0, 2**63), max_size=3).map(tuple),
    st.binary(min_size=32, max_size=32),
)
contents = st.tuples(st.lists(rows, max_size=4, unique_by=lambda row: row[0]), st.binary(max_size=8))


@given(contents, st.randoms())
def test_the_order_of_the_tensors_does_not_count(content: tuple[list, bytes], random: object) -> None:
    tensors, config = content
    shuffled = sorted(tensors, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert combine(tensors, config, hashlib.sha256()) == combine(shuffled, config, hashlib.sha256())


@given(contents, contents)
def test_other_contents_have_other_digests(one: tuple[list, bytes], other: tuple[list, bytes]) -> None:
    same = sorted(one[0]) == sorted(other[0]) and one[1] == other[1]
    assert (combine(*one, hashlib.sha256()) == combine(*other, hashlib.sha256())) is same


@pytest.mark.parametrize("text", ["blake3:" + "0a" * 32, "sha256:" + "f" * 64])
def test_a_digest_of_the_grammar_passes_unchanged(text: str) -> None:
    assert check_digest(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0a" * 32,
        "blake3:" + "0" * 63,
        "blake3:" + "A" * 64,
        "md5:" + "0" * 64,
        "sha256:" + "0" * 64 + "\n",
        "é" * 99,
    ],
)
def test_any_other_digest_is_an_invalid_spec(text: str) -> None:
    with pytest.raises(InvalidSpec):
        check_digest(text)

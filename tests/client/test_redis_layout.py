"""The manifest of a directory in Redis: what is written is read, and nothing else is."""

from __future__ import annotations

import contextlib
import tracemalloc

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf import errors
from warmshelf.redis_layout import (
    FIELDS,
    StoredFile,
    StoredManifest,
    chunk_count,
    chunk_key,
    chunk_keys,
    decode_manifest,
    encode_manifest,
    manifest_key,
)

CHUNK = 64 << 10
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1, max_size=60
).filter(lambda name: name not in (".", ".."))


@st.composite
def manifests(draw: st.DrawFn) -> StoredManifest:
    chunk = draw(st.sampled_from([CHUNK, 1 << 20, 4 << 20]))
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    sizes = [draw(st.sampled_from([0, 1, chunk - 1, chunk, chunk + 1, 9 * chunk])) for _ in names]
    crcs = [draw(st.binary(min_size=4 * n, max_size=4 * n)) for n in (chunk_count(s, chunk) for s in sizes)]
    files = tuple(map(StoredFile, names, sizes, crcs))
    return StoredManifest(draw(st.text("0123456789abcdef", min_size=32, max_size=32)), chunk, files)


@given(manifests())
def test_what_is_encoded_is_decoded(manifest: StoredManifest) -> None:
    assert decode_manifest("x", encode_manifest(manifest)) == manifest


@given(manifests(), st.data())
def test_a_manifest_that_was_changed_anywhere_is_refused_or_still_sound(
    manifest: StoredManifest, data: st.DataObject
) -> None:
    """A changed table whose CRC was made to fit is refused, or is one that could have been written."""
    fields = encode_manifest(manifest)
    field = data.draw(st.sampled_from(FIELDS))
    value = bytearray(fields[field])
    at = data.draw(st.integers(0, len(value)))
    value[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    fields[field] = bytes(value)
    fields[b"files_crc32c"] = b"%08x" % crc32c.crc32c(fields[b"files"])
    try:
        found = decode_manifest("x", fields)
    except (errors.MalformedArtifact, errors.UnsupportedFormat):
        return
    assert encode_manifest(found) == fields


@given(st.dictionaries(st.sampled_from(FIELDS), st.one_of(st.none(), st.binary(max_size=40))))
def test_any_fields_are_a_manifest_or_a_typed_error(fields: dict[bytes, bytes | None]) -> None:
    with pytest.raises((errors.MalformedArtifact, errors.UnsupportedFormat)):
        decode_manifest("x", fields)


@given(st.binary(max_size=4096))
def test_any_table_costs_no_more_memory_than_itself(table: bytes) -> None:
    fields = encode_manifest(StoredManifest("0" * 32, CHUNK, ()))
    fields |= {b"files": table, b"files_crc32c": b"%08x" % crc32c.crc32c(table), b"size_bytes": b"0"}
    tracemalloc.start()
    try:
        with contextlib.suppress(errors.MalformedArtifact):
            decode_manifest("x", fields)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(table) + (1 << 20)


def test_a_size_of_exabytes_is_refused_by_the_crcs_that_are_not_there() -> None:
    fields = encode_manifest(StoredManifest("0" * 32, CHUNK, (StoredFile("a", 1, b"\0" * 4),)))
    table = fields[b"files"].replace((1).to_bytes(8, "little"), b"\xff" * 8)
    fields |= {b"files": table, b"files_crc32c": b"%08x" % crc32c.crc32c(table)}
    with pytest.raises(errors.MalformedArtifact, match="CRCs"):
        decode_manifest("x", fields)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "a\n", "x" * 256])
def test_a_file_with_such_a_name_is_not_written(name: str) -> None:
    with pytest.raises(errors.MalformedArtifact):
        encode_manifest(StoredManifest("0" * 32, CHUNK, (StoredFile(name, 0, b""),)))


def test_a_file_twice_is_not_written() -> None:
    with pytest.raises(errors.MalformedArtifact, match="twice"):
        encode_manifest(StoredManifest("0" * 32, CHUNK, (StoredFile("a", 0, b""), StoredFile("a", 0, b""))))


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3)), min_size=2, max_size=2, unique=True))
def test_no_two_chunks_share_a_key_and_all_of_one_artifact_share_a_tag(places: list[tuple[str, str, int]]) -> None:
    """B05: whatever characters names have, a brace and a colon among them."""
    keys = [chunk_key(name, "0" * 32, file, index) for name, file, index in places]
    assert keys[0] != keys[1]
    for (name, _, _), key in zip(places, keys, strict=True):
        tag = manifest_key(name).partition(b"{")[2].partition(b"}")[0]
        assert tag
        assert key.partition(b"{")[2].partition(b"}")[0] == tag
        assert key.isascii()


def test_the_keys_of_all_chunks_are_those_of_each() -> None:
    files = (StoredFile("a", 2 * CHUNK + 1, b"\0" * 12), StoredFile("b", 0, b""))
    keys = chunk_keys("n", StoredManifest("e", CHUNK, files))
    assert keys == [chunk_key("n", "e", "a", index) for index in range(3)]

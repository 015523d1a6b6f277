"""The strict JSON reader, against the standard library's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.errors import MalformedArtifact
from warmshelfd.formats.strict_json import StrictJson

LONG = 1 << 20

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
texts = st.text(st.characters(exclude_categories=["Cs"]))


def read_all(text: bytes, read: Callable[[StrictJson], Any]) -> Any:
    reader = StrictJson(text, "x.json")
    value = read(reader)
    reader.end()
    return value


def accepts(text: bytes, read: Callable[[StrictJson], Any]) -> bool:
    try:
        read_all(text, read)
    except MalformedArtifact:
        return False
    return True


def is_json(text: bytes) -> bool:
    """Say whether the text is JSON whose strings are UTF-8 and whose keys differ."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=distinct, parse_constant=refuse, parse_float=finite)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


def refuse(text: str) -> None:
    raise ValueError(text)


def finite(text: str) -> float:
    return 0.0 if math.isinf(float(text)) else float(text)


def skip(reader: StrictJson) -> None:
    reader.skip(LONG)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_every_json_is_skipped(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    assert accepts(data, skip) == is_json(data)


@given(values, st.data())
def test_a_changed_byte_is_judged_as_the_standard_library_does(value: Any, data: st.DataObject) -> None:
    text = bytearray(json.dumps(value).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.binary(max_size=2) | st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"e", b"-", b"0"])
    )
    assert accepts(bytes(text), skip) == is_json(bytes(text))


@given(st.dictionaries(texts, texts), st.booleans(), st.sampled_from([None, 2]))
def test_members_and_strings_arrive_as_they_were(wanted: dict[str, str], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(wanted, ensure_ascii=ascii_only, indent=indent).encode()
    found: dict[str, str] = {}

    def read(reader: StrictJson) -> None:
        for key in reader.members(found, LONG):
            found[key] = reader.string(LONG)

    read_all(text, read)
    assert list(found.items()) == list(wanted.items())


@given(texts, st.booleans())
def test_a_string_is_as_long_as_its_utf_8(text: str, ascii_only: bool) -> None:
    data = json.dumps(text, ensure_ascii=ascii_only).encode()
    size = len(text.encode())
    assert read_all(data, lambda reader: reader.string(size)) == text
    if size:
        assert not accepts(data, lambda reader: reader.string(size - 1))


@given(st.dictionaries(texts, st.integers(0) | st.lists(st.integers(0)) | texts.filter(lambda t: "}" not in t)))
def test_a_flat_object_arrives_as_it_was(wanted: dict[str, Any]) -> None:
    data = json.dumps(wanted).encode()
    if b"}" in data[1:-1] or b"{" in data[1:-1]:
        return
    assert read_all(data, lambda reader: reader.flat_object(LONG)) == wanted


@pytest.mark.parametrize("number", ["-1", "-0", "1.0", "1e2", "NaN", "Infinity", "-Infinity"])
def test_a_flat_object_has_natural_numbers_only(number: str) -> None:
    text = f'{{"a":{number}}}'.encode()
    assert not accepts(text, lambda reader: reader.flat_object(LONG))


def test_an_error_names_the_file_and_the_byte() -> None:
    with pytest.raises(MalformedArtifact) as caught:
        read_all(b'{"a" 1}', skip)
    assert caught.value.details == {"file": "x.json", "offset_bytes": 5}


def test_a_string_of_many_escapes_is_read_whole() -> None:
    text = "\n\t\u2028" * 1000
    assert read_all(json.dumps(text).encode(), lambda reader: reader.string(LONG)) == text

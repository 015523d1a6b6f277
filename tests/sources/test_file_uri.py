"""The spellings of a file's place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.errors import InvalidSpec
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.file_uri import make_uri, parse_path

parts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda part: part not in (".", "..")
)


@given(st.lists(parts, min_size=1, max_size=5))
def test_a_canonical_uri_names_the_path_it_was_made_of(names: list[str]) -> None:
    path = "/" + "/".join(names)
    assert parse_path(make_uri(path)) == path
    assert make_uri(path).isascii()
    assert parse_path(path) == path


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("/models/llama", "file:///models/llama"),
        ("/models/llama/", "file:///models/llama"),
        ("file:///models/llama", "file:///models/llama"),
        ("file:///models/llama/", "file:///models/llama"),
        ("FILE://LocalHost/models", "file:///models"),
        ("/a b", "file:///a%20b"),
        ("file:///a%20b", "file:///a%20b"),
        ("/a%20b", "file:///a%2520b"),
        ("/what?#", "file:///what%3F%23"),
        ("file:///%7Euser/%6D", "file:///~user/m"),
        ("file:///%C3%A9", "file:///%C3%A9"),
        ("/é", "file:///%C3%A9"),
        ("file:///%252e%252e/x", "file:///%252e%252e/x"),
        ("/...", "file:///..."),
        ("/", "file:///"),
        ("file:///", "file:///"),
    ],
)
def test_every_place_has_one_spelling(text: str, canonical: str) -> None:
    assert FileOpener([]).canonical(text) == canonical
    assert FileOpener([]).canonical(canonical) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "models",
        "../x",
        "./x",
        "~/x",
        "//x",
        "/a//b",
        "/a/./b",
        "/a/../b",
        "/a/..",
        "/a//",
        "/a\0b",
        "/" + "a" * 4096,
        "/\udcff",
        "file:",
        "file:/x",
        "file://",
        "file://x",
        "file://host/x",
        "file://user:word@localhost/x",
        "file://127.0.0.1/x",
        "file:///a/../b",
        "file:///a/%2e%2e/b",
        "file:///a/.%2E/b",
        "file:///a%2fb",
        "file:///a%2F..%2Fb",
        "file:///a%00b",
        "file:///a%",
        "file:///a%4",
        "file:///a%zz",
        "file:///a%ff",
        "file:///a?x=1",
        "file:///a#b",
        "file:////a",
        "http://host/x",
        "s3://bucket/x",
    ],
)
def test_any_other_spelling_is_refused(text: str) -> None:
    """B54."""
    with pytest.raises(InvalidSpec):
        FileOpener([]).canonical(text)
    with pytest.raises(InvalidSpec):
        FileOpener([text])
    with pytest.raises(InvalidSpec):
        FileOpener(["/"]).open(text)


def test_a_refused_uri_is_not_shown() -> None:
    with pytest.raises(InvalidSpec) as caught:
        FileOpener([]).canonical("file://user:hunter2@host/x?sig=hunter2")
    assert "hunter2" not in str(caught.value)

"""Places in Redis have one spelling, and none of them has a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf import errors
from warmshelf.redis_uri import parse_prefix, parse_redis_uri, parse_store
from warmshelfd.sources.settings import check_prefix


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("redis://Cache:6379/0/models/a", "redis://cache:6379/0/models/a"),
        ("REDIS://cache/12/a", "redis://cache:6379/12/a"),
        ("rediss://[::1]:7/0/a/", "rediss://[::1]:7/0/a"),
        ("rediss://[::1]/0/a", "rediss://[::1]:6379/0/a"),
        ("redis://h/0/%61%20b:c@d", "redis://h:6379/0/a%20b%3Ac%40d"),
        ("redis://h/0/é{}", "redis://h:6379/0/%C3%A9%7B%7D"),
        ("redis://h/0/a?layout=tensorizer", "redis://h:6379/0/a?layout=tensorizer"),
    ],
)
def test_a_uri_has_one_spelling(text: str, kept: str) -> None:
    assert str(parse_redis_uri(text)) == kept
    assert str(parse_redis_uri(kept)) == kept


@pytest.mark.parametrize(
    "text",
    [
        "redis://h",
        "redis://h/0",
        "redis://h/0/",
        "redis://h/a/b",
        "redis://h/00/a",
        "redis://h/100000/a",
        "redis://h/0/a//b",
        "redis://h//a",
        "redis://h/0/../a",
        "redis://h/0/%2e%2e/a",
        "redis://h/0/a%2Fb",
        "redis://h/0/a%zz",
        "redis://h/0/a%00",
        "redis://h/0/%ff",
        "redis://h/0/a#b",
        "redis://h/0/a?db=1",
        "redis://h/0/a?layout=other",
        "redis://h:0/0/a",
        "redis://h:65536/0/a",
        "redis://h:x/0/a",
        "redis:///0/a",
        "redis://-h/0/a",
        "redis://h /0/a",
        "redis:/h/0/a",
        "unix:///0/a",
        "redis://h/0/" + "a" * 513,
        "redis://h/0/\ud800",
    ],
)
def test_what_is_no_place_of_an_artifact_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidSpec):
        parse_redis_uri(text)


@pytest.mark.parametrize("parse", [parse_redis_uri, parse_store, parse_prefix])
@pytest.mark.parametrize("user", ["me:SECRET2", ":SECRET2", "SECRET2", "a@b:SECRET2"])
def test_a_user_or_password_is_refused_and_not_repeated(parse: object, user: str) -> None:
    """B33: the text says where they belong instead."""
    with pytest.raises(errors.InvalidSpec, match="no user and no password") as caught:
        parse(f"redis://{user}@h:6379/0/a")  # type: ignore[operator]
    assert "SECRET2" not in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_is_a_place_or_an_error(text: str) -> None:
    for whole in (text, f"redis://h/0/{text}", f"redis://{text}/0/a"):
        try:
            kept = str(parse_redis_uri(whole))
        except errors.InvalidSpec:
            continue
        assert str(parse_redis_uri(kept)) == kept


def test_names_go_below_a_store() -> None:
    assert str(parse_store("redis://h/0").below("a:b")) == "redis://h:6379/0/a%3Ab"
    assert str(parse_store("redis://h/0/loras").below("org/a")) == "redis://h:6379/0/loras/org/a"
    for store, name in (("redis://h", "a"), ("redis://h/0/x?layout=tensorizer", "a"), ("redis://h/0", "../a")):
        with pytest.raises(errors.InvalidSpec):
            parse_store(store).below(name)


@pytest.mark.parametrize("prefix", ["redis://h/models", "redis://h/0//a", "rediss://h:0/0", "redis://me:SECRET2@h/0"])
def test_a_prefix_that_is_none_is_refused_when_the_configuration_is_read(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|prefix") as caught:
        check_prefix(prefix)
    assert "SECRET2" not in str(caught.value)
    assert [check_prefix(good) for good in ("redis://h", "redis://h/0", "rediss://h:7/0/a")]

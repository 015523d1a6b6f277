"""What an operator declares, and what is wrong with what he wrote."""

from __future__ import annotations

import pytest

from warmshelf.errors import InvalidConfig
from warmshelfd.domain.declaration import parse_declaration


def test_ids_and_patterns_are_told_apart_and_the_first_pattern_that_matches_counts() -> None:
    declaration = parse_declaration(
        {
            "meta/llama": {"source": "file:///models/llama", "keep": True},
            "acme/special-*": {"source": "file:///special/{id}", "follow": True},
            "acme/*": {"source": "file:///loras/{id}", "base": "meta/llama"},
        }
    )
    assert list(declaration.artifacts) == ["meta/llama"]
    assert declaration.artifacts["meta/llama"].keep_resident
    special, plain = declaration.match("acme/special-1"), declaration.match("acme/a/b@v1")
    assert special is not None
    assert (special.spec.source.uri, special.follow) == ("file:///special/acme/special-1", True)
    assert plain is not None
    assert (plain.spec.source.uri, plain.spec.base_id) == ("file:///loras/acme/a/b@v1", "meta/llama")
    assert declaration.match("other/a") is None
    assert declaration.match("Acme/a") is None


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"a": 1}, "'a' is no table"),
        ({"a": {}}, "'a' has no source"),
        ({"a": {"source": ""}}, "'a' has no source"),
        ({"a": {"source": "file:///x", "bass": "b"}}, "'bass', did you mean 'base'"),
        ({"a": {"source": 1}}, "source must be a str"),
        ({"a": {"source": "file:///x", "keep": "yes"}}, "keep must be a bool"),
        ({"../a": {"source": "file:///x"}}, "'../a'"),
        ({"a..*": {"source": "file:///x"}}, "contains '..'"),
        ({"[ab]*": {"source": "file:///x"}}, "must begin with a letter or digit"),
        ({"a?*": {"source": "file:///x"}}, "only letters"),
    ],
)
def test_what_is_wrong_is_named(tables: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_declaration(tables)
    assert told in caught.value.message

"""Artifacts that an operator declares: by ID, or by a pattern for IDs not known yet. Pure.

A declaration file is TOML, one table per ID or pattern::

    ["meta/llama-3.1-8b"]
    source = "file:///models/llama-3.1-8b"
    keep = true

    ["acme/*"]
    source = "file:///loras/{id}"
    base = "meta/llama-3.1-8b"

A pattern holds one or more ``*``, each of which stands for any characters, slashes
too. ``{id}`` in a pattern's source becomes the ID that matched.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from warmshelf.errors import InvalidConfig, InvalidId
from warmshelf.types import ArtifactSpec, Source, check_id

_TEXTS = ("source", "base", "digest", "revision")
_FLAGS = ("keep", "follow")


@dataclass(frozen=True, slots=True)
class Declared:
    """How a declared artifact is to be registered."""

    spec: ArtifactSpec
    keep_resident: bool = False
    follow: bool = False


@dataclass(frozen=True, slots=True)
class Declaration:
    """What one file declares. ``patterns`` are in the file's order; the first that matches counts."""

    artifacts: Mapping[str, Declared]
    patterns: tuple[tuple[str, Declared], ...] = ()

    def find(self, artifact_id: str) -> Declared | None:
        """Return how an ID is declared, by itself or by a pattern."""
        return self.artifacts.get(artifact_id) or self.match(artifact_id)

    def match(self, artifact_id: str) -> Declared | None:
        """Return how an ID that nobody registered is to be registered, if a pattern matches it."""
        for pattern, declared in self.patterns:
            if fnmatch.fnmatchcase(artifact_id, pattern):
                return _expand(declared, artifact_id)
        return None


NOTHING = Declaration({})


def parse_declaration(tables: Mapping[str, object]) -> Declaration:
    """Return what a file's tables declare.

    Raises:
        InvalidConfig: names the table, the key, and what is right.
    """
    artifacts, patterns = {}, []
    for name, table in tables.items():
        declared = _declared(name, table)
        if "*" in name:
            _check_pattern(name)
            patterns.append((name, declared))
        else:
            _check_plain(name)
            artifacts[name] = declared
    return Declaration(artifacts, tuple(patterns))


def _declared(name: str, table: object) -> Declared:
    if not isinstance(table, Mapping):
        raise InvalidConfig(f"declaration of {name!r} is no table")
    for key, value in table.items():
        wanted = str if key in _TEXTS else bool if key in _FLAGS else None
        if wanted is None:
            near = get_close_matches(str(key), (*_TEXTS, *_FLAGS), n=1, cutoff=0)
            raise InvalidConfig(f"declaration of {name!r}: unknown key {key!r}, did you mean {near[0]!r}?")
        if not isinstance(value, wanted):
            raise InvalidConfig(f"declaration of {name!r}: {key} must be a {wanted.__name__}")
    if not table.get("source"):
        raise InvalidConfig(f"declaration of {name!r} has no source")
    source = Source(table["source"], table.get("revision", ""), table.get("digest", ""))
    spec = ArtifactSpec(source, base_id=table.get("base", ""))
    return Declared(spec, table.get("keep", False), table.get("follow", False))


def _check_plain(name: str) -> None:
    try:
        check_id(name)
    except InvalidId as error:
        raise InvalidConfig(error.message) from None


def _check_pattern(pattern: str) -> None:
    """A pattern is an ID but for its stars; other wildcards would mean something to fnmatch."""
    _check_plain(pattern.replace("*", "x"))


def _expand(declared: Declared, artifact_id: str) -> Declared:
    source = declared.spec.source
    uri = source.uri.replace("{id}", artifact_id)
    spec = ArtifactSpec(Source(uri, source.revision, source.expected_digest), base_id=declared.spec.base_id)
    return Declared(spec, declared.keep_resident, declared.follow)

"""How the command pushes, and registers many artifacts: reading what is to come in, a bar meanwhile, the outcome.

Knows no argument and makes no connection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from warmshelf import _cli_render as render
from warmshelf._wire import registered_to_proto
from warmshelf.client import Shelf
from warmshelf.types import Artifact, NewArtifact, Registered
from warmshelf.v1 import catalog_pb2

_KINDS = {field.name: bool if field.type == "bool" else str for field in fields(NewArtifact)}


def push(shelf: Shelf, artifact_id: str, path: str, *, base: str, replace: bool, keep: bool) -> Artifact:
    """Push a directory; on a terminal, show a bar."""
    with render.bar(artifact_id) as tell:
        return shelf.push(
            artifact_id,
            path=path,
            base=base,
            replace=replace,
            keep=keep,
            progress=lambda done, total: tell("push", done, total),
        )


def read_lines(path: str) -> list[NewArtifact]:
    """Return the artifacts that a file of JSON lines names; ``-`` is the standard input.

    Raises:
        ValueError: the file cannot be read, or a line is not right; says which.
    """
    try:
        if path == "-":
            return list(_parsed(sys.stdin))
        with open(path, encoding="utf-8") as file:
            return list(_parsed(file))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def _parsed(lines: Iterable[str]) -> Iterator[NewArtifact]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _new_artifact(json.loads(line))
            except (ValueError, TypeError) as error:
                raise ValueError(f"line {number}: {error}") from None


def _new_artifact(row: Any) -> NewArtifact:
    if not isinstance(row, dict):
        raise TypeError("is no JSON object")
    values = {"artifact_id" if key == "id" else key: value for key, value in row.items()}
    for name, value in values.items():
        if name not in _KINDS:
            raise ValueError(f"{name!r} is no field; there are id, {', '.join(list(_KINDS)[1:])}")
        if type(value) is not _KINDS[name]:
            raise TypeError(f"{name} is no {_KINDS[name].__name__}")
    for name in ("artifact_id", "source"):
        if not values.get(name):
            raise ValueError(f"{'id' if name == 'artifact_id' else name} is missing")
    return NewArtifact(**values)


def show_outcomes(outcomes: list[Registered], output: render.Output) -> int:
    """Print what became of many registrations; return how many were refused."""
    refused = [one for one in outcomes if one.error is not None]
    if output is render.Output.JSON:
        render.message(catalog_pb2.RegisterArtifactsResponse(results=map(registered_to_proto, outcomes)))
    else:
        for one in refused:
            render.outcome(one)
        print(f"registered {len(outcomes) - len(refused)} of {len(outcomes)}")
    return len(refused)

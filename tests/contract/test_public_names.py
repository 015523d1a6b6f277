"""The names that users write down: methods and their arguments, errors, enumerations, the command."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import subprocess
import sys
from collections.abc import Mapping

import pytest

import warmshelf
from warmshelf import errors, types
from warmshelf._str_enum import StrEnum

PARAMETERS: Mapping[str, set[str]] = {
    "register": {"artifact_id", "source", "base", "digest", "replace", "follow", "keep"},
    "push": {"artifact_id", "path", "tensors", "config", "base"},
    "load": {"artifact_id"},
    "acquire": {
        "artifact_id",
        "timeout",
        "resident_only",
        "expected_digest",
        "rank_max",
        "features",
    },
    "get": {"artifact_id"},
    "list": {"base"},
    "evict": {"artifact_id", "drain"},
    "remove": {"artifact_id"},
    "watch": set(),
    "leases": set(),
    "capacity": set(),
}

REASONS = {
    "SOURCE_CHANGED": errors.SourceChanged,
    "SPEC_MISMATCH": errors.SpecMismatch,
    "INVALID_SPEC": errors.InvalidSpec,
    "SOURCE_TRUNCATED": errors.SourceTruncated,
    "MALFORMED_ARTIFACT": errors.MalformedArtifact,
    "BASE_MISMATCH": errors.BaseMismatch,
    "ARENA_FULL": errors.ArenaFull,
}

ENUMERATIONS = [
    one
    for module in (errors, types)
    for one in vars(module).values()
    if isinstance(one, type) and issubclass(one, StrEnum) and one is not StrEnum
]


@pytest.mark.parametrize("method", PARAMETERS)
def test_a_method_takes_what_it_promises(method: str) -> None:
    assert set(inspect.signature(getattr(warmshelf.Shelf, method)).parameters) >= {"self", *PARAMETERS[method]}


def test_connect_takes_what_it_promises() -> None:
    parameters = inspect.signature(warmshelf.connect).parameters
    assert set(parameters) >= {"address", "arena", "holder", "tls", "timeout"}
    assert all(parameter.default is not parameter.empty for parameter in parameters.values())


@pytest.mark.parametrize("reason", REASONS)
def test_an_error_is_found_by_its_reason(reason: str) -> None:
    assert errors.TABLE[reason] is REASONS[reason]
    assert REASONS[reason].reason == reason


@pytest.mark.parametrize("cls", errors.TABLE.values(), ids=errors.TABLE)
def test_every_error_keeps_what_it_has_when_it_is_copied_or_sent_to_another_process(
    cls: type[errors.WarmshelfError],
) -> None:
    error = cls("no room", needed_bytes=5, artifact_id="a")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is cls
        assert (str(twin), twin.details) == (f"{cls.reason}: no room", {"needed_bytes": 5, "artifact_id": "a"})
        assert (twin.code, twin.retryable, twin.fault) == (error.code, error.retryable, error.fault)


def test_a_code_is_equal_to_its_name() -> None:
    assert errors.ArtifactNotFound.code == "NOT_FOUND"
    assert f"{errors.ArenaFull.code}" == "RESOURCE_EXHAUSTED"


def test_enumerations_are_equal_to_their_values_and_print_as_they_do() -> None:
    assert len(ENUMERATIONS) >= 8
    for member in [member for enumeration in ENUMERATIONS for member in enumeration]:
        assert member == member.value
        assert str(member) == f"{member}" == member.value


def test_a_shelf_shows_where_its_daemon_is_and_nothing_else() -> None:
    with warmshelf.connect("unix:///run/x.sock", token=None) as shelf:
        assert repr(shelf) == "<Shelf unix:///run/x.sock>"
    assert repr(shelf) == "<Shelf unix:///run/x.sock closed>"


def test_the_command_is_the_module_too() -> None:
    for name, option in itertools.product(("warmshelf", "warmshelfd"), ("--help", "-h")):
        told = subprocess.run([sys.executable, "-m", name, option], capture_output=True, text=True, check=True)
        assert told.stdout.lower().startswith(f"usage: {name} ")


def test_help_begins_with_what_is_done_first() -> None:
    told = subprocess.run([sys.executable, "-m", "warmshelf", "--help"], capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in told.stdout.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed[:3] == ["register", "load", "list"]

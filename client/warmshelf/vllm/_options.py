"""Options of the plugin.

The environment is for all of it: WARMSHELF_ADDRESS and WARMSHELF_ARENA, which every client reads. What
is said with ``--model-loader-extra-config`` is for base weights only, because vLLM shows it to
nobody else. Needs no vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from warmshelf._engine_shelf import WAIT_SECONDS
from warmshelf._incoming import LOAD_TIMEOUT_SECONDS
from warmshelf.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """What ``--model-loader-extra-config`` may say.

    Attributes:
        artifact_id: the base; by default what the model's directory was prepared from.
        address, arena: as for ``warmshelf.connect``.
        digest: refuse any other content.
        wait_seconds: for the daemon to answer.
        load_seconds: for the base to be resident once it does.
        fallback: without the daemon, load the files in the model's directory.
        strict: every parameter must come out of the artifact; else vLLM's own rule counts, which
            lets whole modules pass.
    """

    artifact_id: str = ""
    address: str = ""
    arena: str = ""
    digest: str = ""
    wait_seconds: float = WAIT_SECONDS
    load_seconds: float = LOAD_TIMEOUT_SECONDS
    fallback: bool = False
    strict: bool = True


def loader_options(given: object) -> LoaderOptions:
    """Return what was given, checked.

    Raises:
        InvalidRequest: an option is not known or has a value of the wrong type; names it.
    """
    if not isinstance(given, Mapping):
        raise InvalidRequest("--model-loader-extra-config must be a JSON object")
    known = {field.name: type(field.default) for field in fields(LoaderOptions)}
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(f"--model-loader-extra-config has no option {name!r}; there are {', '.join(known)}")
        if not _is_a(value, known[name]):
            wanted = "a positive number" if known[name] is float else known[name].__name__
            raise InvalidRequest(f"--model-loader-extra-config: {name} must be {wanted}, got {value!r}")
    return LoaderOptions(**given)


def _is_a(value: Any, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return isinstance(value, wanted)

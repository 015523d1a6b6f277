"""Options of the plugin, and the shelf that they lead to.

The environment is for all of it: WARMSHELF_ADDRESS and WARMSHELF_ARENA, which every client reads. What
is said with ``--model-loader-extra-config`` is for base weights only, because vLLM shows it to
nobody else. Needs no vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from warmshelf._incoming import CALL_TIMEOUT_SECONDS, LOAD_TIMEOUT_SECONDS
from warmshelf.client import Shelf, connect
from warmshelf.errors import DaemonUnreachable, InvalidRequest

WAIT_SECONDS = CALL_TIMEOUT_SECONDS
"""How long a starting engine waits for a daemon: a sidecar starts beside it, not before it."""

T = TypeVar("T")

_PAUSE_SECONDS = 0.2
"""Between two looks at a daemon that is not there yet; each look waits by itself."""


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


def shelf_at(address: str = "", arena: str = "", timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> Shelf:
    """Return the shelf of this process and of what it forks, not connected yet."""
    return _shelf(address, arena, float(timeout_seconds))


@cache  # few: one for each address that somebody wrote down
def _shelf(address: str, arena: str, timeout_seconds: float) -> Shelf:
    return connect(address or None, arena=arena or None, timeout=timeout_seconds)


def patiently(shelf: Shelf, wait_seconds: float, call: Callable[[], T]) -> T:
    """Return what the call returns, also if the daemon is only started meanwhile.

    Raises:
        DaemonUnreachable: none answered in time.
    """
    try:
        return call()
    except DaemonUnreachable:
        _wait_for_daemon(shelf, wait_seconds)
        return call()


def _wait_for_daemon(shelf: Shelf, wait_seconds: float) -> None:
    until = time.monotonic() + wait_seconds
    while True:
        try:
            shelf.capabilities()
        except DaemonUnreachable:
            if time.monotonic() + _PAUSE_SECONDS >= until:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return

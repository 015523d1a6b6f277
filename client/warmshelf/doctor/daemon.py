"""Whether a daemon answers, and whether it and this client are of one release.

Asks it one question; everything else here is judging.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from warmshelf._sizes import show_size
from warmshelf.client import Shelf
from warmshelf.doctor.finding import Finding, Level
from warmshelf.errors import PermissionDenied, Unauthenticated, WarmshelfError
from warmshelf.types import Capabilities

REACH = "daemon"
"""The check that decides between exit statuses 1 and 3."""

ANSWER_SECONDS = 2.0
"""A daemon answers at once, also under load; what it is given beyond that is for a slow node."""


@dataclass(frozen=True, slots=True)
class DaemonSeen:
    """A daemon as it answered.

    Attributes:
        address: where it was asked.
        capabilities: what it said; None if it did not answer.
        refusal: why not.
        client_version: this side's release; "" if it is not installed.
        is_barred: it answers, but not this caller.
    """

    address: str
    capabilities: Capabilities | None
    refusal: str
    client_version: str
    is_barred: bool = False


def look(reach: Callable[[], Shelf]) -> DaemonSeen:
    """Ask a daemon what it is.

    Raises:
        InvalidRequest: there is no such address, or the token may not go there.
    """
    with reach() as shelf:
        try:
            return DaemonSeen(shelf.address, shelf.capabilities(), "", _own_version())
        except WarmshelfError as error:
            is_barred = isinstance(error, (Unauthenticated, PermissionDenied))
            return DaemonSeen(shelf.address, None, error.message, _own_version(), is_barred)


def _own_version() -> str:
    try:
        return importlib.metadata.version("warmshelf")
    except importlib.metadata.PackageNotFoundError:
        return ""


def judge(seen: DaemonSeen) -> Iterator[Finding]:
    """Yield what there is to say of the daemon."""
    said = seen.capabilities
    if seen.is_barred:
        text = f"the daemon at {seen.address} does not take this caller: {seen.refusal}"
        advice = "say who calls: --token-file or --tls-cert before the subcommand, and an [[identity]] at the daemon"
        yield Finding("access", Level.PROBLEM, text, advice)
        return
    if said is None:
        advice = "start warmshelfd, or say where it listens: --address or WARMSHELF_ADDRESS"
        yield Finding(REACH, Level.PROBLEM, seen.refusal, advice)
        return
    text = f"warmshelfd {said.daemon_version} answers at {seen.address}, with {show_size(said.arena_size_bytes)}"
    yield Finding(REACH, Level.OK, text, numbers={"budget_bytes": said.arena_size_bytes})
    yield _versions(said.daemon_version, seen.client_version)


def _versions(daemon: str, client: str) -> Finding:
    numbers = {"daemon_version": daemon, "client_version": client}
    if not client or _release(daemon) == _release(client):
        return Finding("versions", Level.OK, f"daemon {daemon}, client {client or 'not installed'}", numbers=numbers)
    text = f"the daemon is {daemon}, this client {client}: what one does not know is streamed or refused by name"
    return Finding("versions", Level.NOTE, text, "keep them within one minor release of each other", numbers)


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])

"""Openers of HTTP sources with settings as a configuration file would say them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warmshelfd.opening import openers
from warmshelfd.settings import Settings
from warmshelfd.sources.base import OpenSource

QUICK: Mapping[str, object] = {
    "source_connect_seconds": 0.2,
    "source_answer_seconds": 0.3,
    "source_stall_seconds": 0.3,
    "source_retry_seconds": 1,
    "source_attempts_max": 2,
}
"""Little patience."""


class Openers:
    """Opens URLs of both schemes."""

    def __init__(self, settings: Settings) -> None:
        self._openers = openers(settings)

    def open(self, url: str, revision: str = "") -> OpenSource:
        return self._openers[url.partition("://")[0].lower()].open(url, revision)


def opener_for(
    allowed: Sequence[str], sources: Sequence[Mapping[str, object]] = (), limits: Mapping[str, object] = {}
) -> Openers:
    """Return what opens URLs below the allowed prefixes."""
    told = {"listen": ["unix:///run/x.sock"], "arena": "/run/x", "registry": "sqlite:////run/x.sqlite"}
    return Openers(Settings.model_validate({**told, "allow_source": allowed, "source": sources, **limits}))


def settings(prefix: str, **others: object) -> dict[str, object]:
    """Return settings of a prefix of a server of ours, whose address is not public."""
    return {"prefix": prefix, "allow_private": True, **others}


def files_of(opener: Openers, url: str) -> dict[str, int]:
    """Return the files of a source."""
    with opener.open(url) as source:
        return dict(source.files())

"""Opens paths inside the allowed prefixes and never outside, whatever links say.

A link may lead anywhere inside the allowed prefixes; one that would leave them is
refused by its text, before anything outside is looked at. Each step of a path is
opened from the directory before it without following links, and links are followed
here, so there is no moment between checking a path and using it. (openat2's
RESOLVE_BENEATH would refuse every absolute link, also those that stay inside.)

Knows nothing of what files hold.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

LINKS_MAX = 40
"""Most links followed on one path, as in the kernel: more is taken for a ring."""


class OutsidePrefixError(Exception):
    """The path leaves the allowed prefixes."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """An allowed prefix: as the operator spelled it, and where that led at the start."""

    path: str
    real_path: str

    def below(self, path: str) -> str | None:
        """Return the rest of a path that is this prefix or lies below it."""
        for own in (self.path, self.real_path):
            if path == own:
                return ""
            if path.startswith(own.rstrip("/") + "/"):
                return path[len(own.rstrip("/")) + 1 :]
        return None


class Prefixes:
    """The places from which sources may be read. None allows nothing."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Take absolute paths; links in them are followed here, once, on the operator's word."""
        # The outermost first, so that links may use all that is allowed.
        self._prefixes = tuple(Prefix(path, os.path.realpath(path)) for path in sorted(paths, key=len))

    def open(self, path: str) -> int:
        """Return an O_PATH descriptor of what the absolute path leads to, which the caller closes.

        Raises:
            OutsidePrefixError: the path, or a link on it, leaves the prefixes.
            OSError: as from ``os.open``.
        """
        walk: list[int] = []
        try:
            parts = self._enter(walk, path)
            links = 0
            while parts:
                target = _step(walk, parts.pop())
                if target is None:
                    continue
                links += 1
                if links > LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                parts += self._enter(walk, target) if target.startswith("/") else _reversed_parts(target)
            return walk.pop()
        finally:
            _leave(walk)

    def _enter(self, walk: list[int], path: str) -> list[str]:
        """Begin the walk anew at the prefix of the path; return the parts below it, the last first."""
        for prefix in self._prefixes:
            rest = prefix.below(path)
            if rest is not None:
                _leave(walk)
                walk.append(os.open(prefix.real_path, os.O_PATH | os.O_NOFOLLOW))
                return _reversed_parts(rest)
        raise OutsidePrefixError


def _step(walk: list[int], part: str) -> str | None:
    """Go one part further; return where it leads instead if it is a link."""
    if part in ("", "."):
        return None
    if part == "..":
        os.close(walk.pop())
        if not walk:
            raise OutsidePrefixError
        return None
    step = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=walk[-1])
    if stat.S_ISLNK(os.fstat(step).st_mode):
        try:
            return os.readlink("", dir_fd=step)
        finally:
            os.close(step)
    walk.append(step)
    return None


def _reversed_parts(path: str) -> list[str]:
    return path.split("/")[::-1]


def _leave(walk: list[int]) -> None:
    while walk:
        os.close(walk.pop())

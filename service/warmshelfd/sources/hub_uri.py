"""The place that ``hf://ORG/NAME[@REVISION][/PATH]`` names, and its one spelling.

A slash in a revision, as in ``refs/pr/1``, is written ``%2F``. Pure text: knows nothing
of what exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from warmshelf.errors import InvalidSpec

_SCHEME = "hf://"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]|/(?=[A-Za-z0-9_])){0,199}")
_HIDDEN = re.compile(r"[\x00-\x1f\x7f\\?#%@]")
_PATH_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A repository of models, a revision of it or "", and a file or directory in it or ""."""

    repository: str
    revision: str
    path: str

    @property
    def uri(self) -> str:
        """The one spelling."""
        revision = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
        return self._uri(revision)

    @property
    def bare_uri(self) -> str:
        """The place whatever its revision, for prefixes that name none."""
        return self._uri("")

    def _uri(self, revision: str) -> str:
        return f"{_SCHEME}{self.repository}{revision}" + (f"/{self.path}" if self.path else "")


def parse_hub_uri(text: str) -> HubPlace:
    """Return the place that a URI names.

    Raises:
        InvalidSpec: it is no such URI, or may have a secret in it. Never shows the text.
    """
    if text[: len(_SCHEME)].lower() != _SCHEME:
        _refuse()
    organisation, _, rest = text[len(_SCHEME) :].partition("/")
    head, _, path = rest.partition("/")
    name, at, revision = head.partition("@")
    if not _NAME.fullmatch(organisation) or not _NAME.fullmatch(name):
        _refuse()
    return HubPlace(f"{organisation}/{name}", check_revision(revision) if at else "", _check_path(path))


def check_revision(text: str) -> str:
    """Return a branch, tag or commit as the hub has it.

    Raises:
        InvalidSpec: it is none.
    """
    revision = re.sub("%2[Ff]", "/", text)
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise InvalidSpec("a revision of a hub is a branch, a tag or a commit; a slash in it is written %2F in a URI")
    return revision


def _check_path(text: str) -> str:
    path = text.removesuffix("/")
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        _refuse()
    try:
        size = len(path.encode())
    except ValueError:
        _refuse()
    if size > _PATH_BYTES_MAX or _HIDDEN.search(path):
        _refuse()
    return path


def _refuse() -> NoReturn:
    raise InvalidSpec("a source on a hub is hf://ORG/NAME, with @REVISION and /PATH if need be, and nothing else")

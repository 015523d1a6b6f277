"""The two spellings of a file's place, ``file:///path`` and ``/path``, and the one kept.

Pure text: knows nothing of what exists, or is allowed.
"""

from __future__ import annotations

import re
from typing import NoReturn
from urllib.parse import quote, unquote_to_bytes

from warmshelf.errors import InvalidSpec

_SCHEME = "file://"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HIDDEN = re.compile(r"%(?:00|2[Ff])")  # NUL and slash: never part of a name

PATH_BYTES_MAX = 4095
"""Longest path that Linux takes."""


def parse_path(text: str) -> str:
    """Return the absolute path that a file URI, or a plain path, names.

    Raises:
        InvalidSpec: it is neither, names another host, or the path is not in its one
            spelling: no ``.``, ``..`` or empty part.
    """
    path = _uri_path(text) if text[: len(_SCHEME)].lower() == _SCHEME else text
    return _check_path(path)


def make_uri(path: str) -> str:
    """Return the URI of an absolute path, in canonical form."""
    return _SCHEME + quote(path)


def _uri_path(uri: str) -> str:
    host, slash, rest = uri[len(_SCHEME) :].partition("/")
    if host.lower() not in ("", "localhost"):
        _refuse("a file URI names no other host")
    if "?" in rest or "#" in rest:
        _refuse("a file URI has no query and no fragment")
    if _BAD_ESCAPE.search(rest) or _HIDDEN.search(rest):
        _refuse("a percent sign in a file URI begins the code of a character other than slash and NUL")
    try:
        return slash + unquote_to_bytes(rest).decode()
    except ValueError:
        _refuse("the path of a file URI is UTF-8")


def _check_path(path: str) -> str:
    """Return the path without a slash at its end."""
    if not path.startswith("/"):
        _refuse("a file source is an absolute path or begins with file:///")
    if path == "/":
        return path
    parts = path.removesuffix("/").split("/")[1:]
    if any(part in ("", ".", "..") for part in parts):
        _refuse("the path of a file source has no empty part, no '.' and no '..'")
    try:
        size = len(path.encode())
    except ValueError:
        _refuse("the path of a file source is UTF-8")
    if "\0" in path or size > PATH_BYTES_MAX:
        _refuse(f"the path of a file source has at most {PATH_BYTES_MAX} bytes and no NUL")
    return "/" + "/".join(parts)


def _refuse(why: str) -> NoReturn:
    # The text itself is not shown: a mistyped URI may carry a password.
    raise InvalidSpec(why)

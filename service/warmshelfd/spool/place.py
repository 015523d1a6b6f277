"""What names a spool: a directory of this node, or a place in a store. Opens nothing."""

from __future__ import annotations

import os

STORE_SCHEMES = ("s3", "redis", "rediss")
"""Stores that can keep what is pushed."""


def scheme_of(place: str) -> str:
    """Return the scheme of a place in a store; "" of a directory."""
    scheme, found, _ = place.partition("://")
    return scheme.lower() if found else ""


def check_directory(path: str) -> str:
    """Return the absolute path of a directory; a ValueError says what is right."""
    if not path or "\0" in path:
        raise ValueError("it must be a directory")
    return os.path.abspath(path)

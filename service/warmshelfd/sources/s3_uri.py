"""The place that ``s3://bucket/key`` names, and its one spelling.

A key stands as it is: no character is encoded, as every tool for S3 has it. So keys
with ``?`` or ``#``, which may be part of a key, cannot be named: where they stand in a
URI, there may be a secret behind them. Pure text: knows nothing of what exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from warmshelf.errors import InvalidSpec

KEY_BYTES_MAX = 1024
"""Longest key that S3 takes."""

_SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")  # old buckets have what new ones may not
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FILE = re.compile(r".*\.[A-Za-z_]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class S3Place:
    """A bucket, and a key or the prefix of keys; ``key`` has no slash at either end and may be empty."""

    bucket: str
    key: str

    @property
    def uri(self) -> str:
        """The one spelling."""
        return f"{_SCHEME}{self.bucket}/{self.key}" if self.key else f"{_SCHEME}{self.bucket}"

    @property
    def is_file_like(self) -> bool:
        """Whether the last part ends as files do: a dot and letters. A guess: where to look first."""
        return bool(_FILE.fullmatch(self.key.rpartition("/")[2]))


def parse_s3_uri(text: str) -> S3Place:
    """Return the place that a URI names; a slash at its end makes no difference.

    Raises:
        InvalidSpec: it is no such URI, or may have a secret in it. Never shows the text.
    """
    if text[: len(_SCHEME)].lower() != _SCHEME:
        _refuse("an S3 source is s3://BUCKET/KEY")
    bucket, _, key = text[len(_SCHEME) :].partition("/")
    if not _BUCKET.fullmatch(bucket):
        _refuse("the bucket of an S3 source has 3 to 255 letters, digits, dots and hyphens, and neither user nor port")
    return S3Place(bucket, _check_key(key.removesuffix("/")))


def _check_key(key: str) -> str:
    if "?" in key or "#" in key:
        _refuse("an S3 source has no query and no fragment; credentials belong in the daemon's configuration")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        _refuse("the key of an S3 source has no empty part, no '.' and no '..'")
    try:
        size = len(key.encode())
    except ValueError:
        _refuse("the key of an S3 source is UTF-8")
    if size > KEY_BYTES_MAX or _CONTROL.search(key):
        _refuse(f"the key of an S3 source has at most {KEY_BYTES_MAX} bytes and no control characters")
    return key


def _refuse(why: str) -> NoReturn:
    raise InvalidSpec(why)

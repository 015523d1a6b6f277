"""What the operator says of remote sources: per prefix, where they are reached and with what credentials.

Secrets are never written in the configuration: a secret's value is ``env:NAME`` or
``file:/PATH``, and is read when it is used, so that a changed file counts from then on.
Opens nothing else, and knows no protocol.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warmshelf.errors import InvalidConfig, InvalidSpec
from warmshelf.redis_uri import SCHEMES as REDIS_SCHEMES
from warmshelf.redis_uri import parse_prefix

SECRET_BYTES_MAX = 64 << 10
"""Longest secret: tokens and keys are far shorter, a wrong path may be a disk."""

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\0]*")
_PREFIX = re.compile(r"[a-z][a-z0-9+.-]*://[^\0\s?#]*")
_REMOTE_SCHEMES = ("http", "https", "s3", "hf", *REDIS_SCHEMES)


def _check_reference(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise ValueError("a secret is named as env:NAME or file:/PATH, never written here")
    return text


def check_prefix(text: str) -> str:
    """Return a prefix of remote sources; a ValueError says what is right."""
    if not _PREFIX.fullmatch(text) or "@" in text.partition("://")[2].partition("/")[0]:
        raise ValueError("a prefix is scheme://PLACE/PATH without user, query or fragment")
    scheme = text.partition("://")[0]
    if scheme != "file" and scheme not in _REMOTE_SCHEMES:  # which have keys of encrypted files, and nothing else
        raise ValueError(f"there is no source of scheme {scheme!r}; there are file, {', '.join(_REMOTE_SCHEMES)}")
    if scheme in REDIS_SCHEMES:
        try:
            parse_prefix(text)
        except InvalidSpec as error:
            raise ValueError(error.message) from None
    return text


Secret = Annotated[str, AfterValidator(_check_reference)]


class SourceSettings(BaseModel):
    """How sources below one prefix are reached. The longest prefix that fits a URI counts, alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)

    prefix: Annotated[str, AfterValidator(check_prefix)]
    """`scheme://PLACE/PATH` as in `allow_source`; it does not allow anything by itself."""
    allow_private: bool = False
    """HTTP: whether loopback, private, link-local and other non-public addresses may be connected to; hf: whether the
    hub may send readers to such."""
    ca_file: str | None = None
    """HTTP, Redis, and bytes of hf: PEM file of the authorities that are trusted instead of the system's; S3: beside
    those."""
    bearer_token: Secret | None = None
    """HTTP, hf: sent as `Authorization: Bearer`."""
    username: str | None = None
    """HTTP (basic), Redis (ACL user)."""
    password: Secret | None = None
    """HTTP (basic), Redis."""
    headers: dict[str, Secret] = Field(default_factory=dict)
    """HTTP: further headers, by name."""
    endpoint: str | None = None
    """S3, hf: URL of the server, if it is not the public one."""
    region: str | None = None
    """S3."""
    path_style: bool = True
    """S3: whether the bucket is in the URL's path; else in its host name."""
    access_key_id: Secret | None = None
    """S3; without it, as obstore finds credentials: environment, web identity, container or instance."""
    secret_access_key: Secret | None = None
    """S3."""
    session_token: Secret | None = None
    """S3."""
    anonymous: bool = False
    """S3: requests are not signed."""
    tensors_key: Secret | None = None
    """Any scheme: key of encrypted `.tensors` files, 32 bytes raw or as 64 hexadecimal digits, or a passphrase."""


def read_secret(reference: str) -> bytes:
    """Return a secret's value without the line break at its end; errors as ``read_key``."""
    return read_key(reference).removesuffix(b"\n").removesuffix(b"\r")


def read_key(reference: str) -> bytes:
    """Return a secret's value as it is: the last byte of a key may look like a line break.

    Raises:
        InvalidConfig: the variable is not set, or the file cannot be read or is too long. Never has the value.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environb.get(os.fsencode(name))
        if value is None:
            raise InvalidConfig(f"the environment variable {name}, which is to hold a secret, is not set", name=name)
        return value
    try:
        with open(name, "rb") as file:
            value = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{name!r}, which is to hold a secret, cannot be read: {error.strerror}") from error
    if len(value) > SECRET_BYTES_MAX:
        raise InvalidConfig(f"{name!r} has more than the {SECRET_BYTES_MAX} bytes of a secret", path=name)
    return value


def is_below(uri: str, prefix: str) -> bool:
    """Say whether a canonical URI is a prefix or lies below it; parts count whole: ``a/bc`` is not below ``a/b``."""
    whole = prefix.rstrip("/")
    return uri == whole or uri.startswith(whole + "/")


def settings_for(uri: str, all_settings: Iterable[SourceSettings]) -> SourceSettings | None:
    """Return the settings with the longest prefix that a canonical URI lies below, if there are any."""
    fitting = (settings for settings in all_settings if is_below(uri, settings.prefix))
    return max(fitting, key=lambda settings: len(settings.prefix), default=None)

"""What single values of settings must be, in a ValueError's words where they are not. Opens nothing."""

from __future__ import annotations

import re

from warmshelf.errors import InvalidConfig, InvalidId, InvalidSpec
from warmshelf.redis_uri import parse_store
from warmshelf.types import check_id
from warmshelfd.options import Listen
from warmshelfd.registry.open import check_registry
from warmshelfd.sources.file_uri import parse_path
from warmshelfd.sources.s3_uri import parse_s3_uri
from warmshelfd.sources.settings import check_prefix
from warmshelfd.spool.place import STORE_SCHEMES, check_directory, scheme_of

CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64 << 10, 2 << 20
"""Smaller chunks cost more calls than they save memory; larger ones are slower, and from
3.9 MiB on a chunk with its head is above the 4 MiB that gRPC clients take by default."""


def check_chunk(size: int) -> int:
    """Return a chunk's size if it may be one."""
    if not CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX or size & (size - 1):
        raise ValueError("a chunk is a power of two from 64KiB to 2MiB; gRPC clients refuse messages above 4MiB")
    return size


def check_spool(place: str) -> str:
    """Return a spool's place in its one spelling."""
    scheme = scheme_of(place)
    if not scheme:
        return check_directory(place)
    if scheme not in STORE_SCHEMES:
        raise ValueError(f"it must be a directory, or a place in a store: {'://, '.join(STORE_SCHEMES)}://")
    check_prefix(place)
    try:
        return parse_s3_uri(place).uri if scheme == "s3" else str(parse_store(place))
    except InvalidSpec as error:
        raise ValueError(error.message) from None


def check_path(path: str) -> str:
    """Return the absolute path of a file."""
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError("it must be the absolute path of a file")
    return path


def check_preload(artifact_id: str) -> str:
    """Return an ID."""
    try:
        return check_id(artifact_id)
    except InvalidId as error:
        raise ValueError(error.message) from None


def check_registry_uri(uri: str) -> str:
    """Return a registry's URI."""
    try:
        check_registry(uri)
    except InvalidConfig as error:
        raise ValueError(error.message) from None
    return uri


def check_source_prefix(text: str) -> str:
    """Return a prefix of sources, of files or of servers."""
    if "://" in text and not text.lower().startswith("file:"):
        return check_prefix(text)
    try:
        parse_path(text)
    except InvalidSpec as error:
        raise ValueError(error.message) from None
    return text


def check_endpoint(url: str) -> str:
    """Return the URL that spans are sent to."""
    if not re.fullmatch(r"https?://[^\s@]+", url):
        raise ValueError("it must be http://HOST:PORT/PATH without a password; OTEL_EXPORTER_OTLP_HEADERS has those")
    return url


def check_http(listen: Listen) -> Listen:
    """Return an address that is one of TCP."""
    if listen.kind == "unix":
        raise ValueError("it must be HOST:PORT")
    return listen

"""What a single setting may be: its text read, checked and brought into the form in which it is used."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from warmshelf._sizes import parse_size
from warmshelf.errors import InvalidConfig, InvalidId, InvalidSpec
from warmshelf.redis_uri import parse_store
from warmshelf.types import check_id
from warmshelfd.options import (
    Listen,
    parse_count,
    parse_listen,
    parse_seconds,
)
from warmshelfd.registry.open import check_registry
from warmshelfd.sources.file_uri import parse_path
from warmshelfd.sources.s3_uri import parse_s3_uri
from warmshelfd.sources.settings import check_prefix
from warmshelfd.spool.place import STORE_SCHEMES, check_directory, scheme_of

CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64 << 10, 2 << 20
"""Smaller chunks cost more calls than they save memory; larger ones are slower, and from
3.9 MiB on a chunk with its head is above the 4 MiB that gRPC clients take by default."""

GRPC_NUMBER_MAX = (1 << 31) - 1
"""Largest number that an option of gRPC takes; of times, that is milliseconds."""
CHUNK_HEAD_BYTES = 1 << 10
"""Room in a message for what a pushed chunk has beside its data; it takes some 70 bytes."""


def _check_chunk(size: int) -> int:
    if not CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX or size & (size - 1):
        raise ValueError("a chunk is a power of two from 64KiB to 2MiB; gRPC clients refuse messages above 4MiB")
    return size


def check_spool(place: str) -> str:
    """Return a spool's place: a directory, or a place in a store in its one spelling."""
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
    """Return the URI of a registry."""
    try:
        check_registry(uri)
    except InvalidConfig as error:
        raise ValueError(error.message) from None
    return uri


def check_source(text: str) -> str:
    """Return a prefix that sources may lie under."""
    if "://" in text and not text.lower().startswith("file:"):
        return check_prefix(text)
    try:
        parse_path(text)
    except InvalidSpec as error:
        raise ValueError(error.message) from None
    return text


def check_endpoint(url: str) -> str:
    """Return the URL of a collector."""
    if url and not re.fullmatch(r"https?://[^\s@]+", url):
        raise ValueError("it must be http://HOST:PORT/PATH without a password; OTEL_EXPORTER_OTLP_HEADERS has those")
    return url


def check_http(listen: Listen) -> Listen:
    """Return a TCP address."""
    if listen.kind == "unix":
        raise ValueError("it must be HOST:PORT")
    return listen


Address = Annotated[Listen, BeforeValidator(parse_listen)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
ChunkSize = Annotated[int, BeforeValidator(parse_size), AfterValidator(_check_chunk)]
Count = Annotated[int, BeforeValidator(parse_count), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]

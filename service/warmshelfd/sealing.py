"""What a sealed segment says of itself, and what is pinned of its small files, which the digest does not cover."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone

import blake3

from warmshelf._wire import KIND_NUMBERS
from warmshelf.types import ArtifactKind
from warmshelf.v1 import manifest_pb2
from warmshelfd import __version__
from warmshelfd.formats.base import Check
from warmshelfd.inspecting import Examined, config_name
from warmshelfd.registry.records import NO_FILES

_LENGTH = struct.Struct("<Q")


def files_digest(kind: ArtifactKind, small_files: Mapping[str, bytes]) -> str:
    """Return the digest of the small files beside the config: of each name and its bytes, by name."""
    others = sorted((name.encode(), data) for name, data in small_files.items() if name != config_name(kind))
    hasher = blake3.blake3()
    for pair in others:
        for part in pair:
            hasher.update(_LENGTH.pack(len(part)) + part)
    return f"blake3:{hasher.hexdigest()}" if others else NO_FILES


def manifest_of(
    examined: Examined, small: Mapping[str, bytes], digest: str, owed: Iterable[Check]
) -> manifest_pb2.Manifest:
    """Return the manifest of a segment that is about to be sealed."""
    manifest = manifest_pb2.Manifest(
        kind=KIND_NUMBERS[examined.inspected.kind],
        fingerprint=examined.fingerprint,
        digest=digest,
        format_name=examined.inspected.format_name,
        file_names=examined.inspected.file_names,
        small_files=[manifest_pb2.SmallFile(name=name, data=data) for name, data in sorted(small.items())],
        daemon_version=__version__,
        hashes=[manifest_pb2.TensorHash(name=one.name, prefix=one.prefix, sha256=one.sha256) for one in owed],
    )
    manifest.seal_time.FromDatetime(datetime.now(timezone.utc))
    return manifest

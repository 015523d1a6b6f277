"""Lays out the small files of a base in a directory, for engines that want one: config and tokenizer, no weights.

The files are the segment's, byte for byte. Beside them lies MARKER_NAME, which says what
the directory was made from: an engine's loader reads there which artifact to load, and a
second run knows the files as its own. Knows no daemon and no engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from warmshelf.errors import ConfigMissing, InvalidRequest, InvalidSpec, SegmentCorrupt
from warmshelf.lease import Lease
from warmshelf.types import ArtifactKind

MARKER_NAME = "warmshelf.json"
CONFIG_NAME = "config.json"


@dataclass(frozen=True, slots=True)
class Marker:
    """What a directory was prepared from.

    Attributes:
        artifact_id, generation: the base.
        digest: of its content, where the daemon knew it.
        config_sha256: of its config.json; the file beside the marker may have been edited since.
        file_names: the files that were laid out.
    """

    artifact_id: str
    generation: int
    digest: str
    config_sha256: str
    file_names: tuple[str, ...]


def read_marker(directory: str | os.PathLike[str]) -> Marker | None:
    """Return what the directory was prepared from; None if it was not, or is none.

    Raises:
        InvalidRequest: there is a marker that cannot be read.
    """
    path = os.path.join(directory, MARKER_NAME)
    try:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        return Marker(
            str(fields["artifact_id"]),
            int(fields["generation"]),
            str(fields["digest"]),
            str(fields["config_sha256"]),
            tuple(map(_checked_name, fields["file_names"])),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, SegmentCorrupt) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", path=path) from error


def prepare_directory(lease: Lease, directory: str | os.PathLike[str]) -> Marker:
    """Lay out a base's small files. A directory that was prepared before is brought up to date.

    It may exist and may be a mount point. Each file appears whole. The marker comes first, so
    that a run which was cut short is taken up by the next one.

    Raises:
        InvalidSpec: the lease is on an adapter.
        ConfigMissing: the base came without a config.json.
        InvalidRequest: the directory has other things in it, or cannot be written.
    """
    marker = marker_of(lease)
    path = os.fspath(directory)
    try:
        os.makedirs(path, exist_ok=True)
        _remove_old(path, marker)
        _write(path, MARKER_NAME, json.dumps(asdict(marker), indent=2).encode() + b"\n")
        for name in marker.file_names:
            _write(path, name, lease.files[name])
    except OSError as error:
        raise InvalidRequest(f"cannot write directory {path}: {error.strerror}", path=path) from error
    return marker


def marker_of(lease: Lease) -> Marker:
    """Return what a directory made from this lease says of itself; errors as ``prepare_directory``."""
    artifact_id = lease.artifact.artifact_id
    if lease.artifact.kind is ArtifactKind.ADAPTER:
        raise InvalidSpec(f"{artifact_id!r} is an adapter; an engine's directory is made from its base")
    if CONFIG_NAME not in lease.files:
        raise ConfigMissing(f"{artifact_id!r} came without a {CONFIG_NAME}", artifact_id=artifact_id, file=CONFIG_NAME)
    names = tuple(_checked_name(name) for name in lease.files if name != MARKER_NAME)
    return Marker(artifact_id, lease.generation, lease.artifact.digest, config_sha256(lease.files), names)


def checked(lease: Lease, marker: Marker | None, directory: str) -> Lease:
    """Return the lease, if an engine that has read the directory's config can take the weights from it; else end it.

    Raises:
        InvalidRequest: it is of no base, or of one with another config.
    """
    try:
        _check(lease, marker, directory)
    except BaseException:
        lease.release()
        raise
    return lease


def _check(lease: Lease, marker: Marker | None, directory: str) -> None:
    artifact_id = lease.artifact.artifact_id
    if lease.artifact.kind is ArtifactKind.ADAPTER:
        raise InvalidRequest(f"{artifact_id!r} is an adapter: an engine's weights come from a base")
    if marker and not _is_of(marker, lease) and marker.config_sha256 != config_sha256(lease.files):
        raise InvalidRequest(
            f"{directory} was prepared from generation {marker.generation} of {artifact_id!r}, and generation "
            f"{lease.generation} has another config.json: run 'warmshelf prepare-model' again",
            path=directory,
        )


def _is_of(marker: Marker, lease: Lease) -> bool:
    """Say whether the directory was surely made from this content, without reading the files in it."""
    return bool(marker.digest) and marker.digest == lease.artifact.digest


def config_sha256(files: Mapping[str, bytes]) -> str:
    """Return what tells one config.json from another."""
    return hashlib.sha256(files.get(CONFIG_NAME, b"")).hexdigest()


def _remove_old(path: str, marker: Marker) -> None:
    """Remove what an earlier run laid out and this one will not; refuse what no run did."""
    earlier = read_marker(path)
    ours = {MARKER_NAME, *(earlier.file_names if earlier else ())}
    foreign = [name for name in os.listdir(path) if name not in ours and not _is_partial(name)]
    if earlier is None and foreign:
        raise InvalidRequest(
            f"directory {path} is not empty and was not made by prepare-model", path=path, file_count=len(foreign)
        )
    for name in ours - {MARKER_NAME, *marker.file_names}:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))


def _is_partial(name: str) -> bool:
    return name.startswith(".warmshelf-") and name.endswith(".partial")


def _checked_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise SegmentCorrupt(f"a small file is named {name[:64]!r}, which is no file's name")
    return name


def _write(directory: str, name: str, data: bytes) -> None:
    partial = os.path.join(directory, f".warmshelf-{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "xb") as file:
            file.write(data)
        os.replace(partial, os.path.join(directory, name))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise

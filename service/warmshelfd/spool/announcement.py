"""What is written of an announcement beside its files, and read again after a restart."""

from __future__ import annotations

import json
from typing import Any

from warmshelf.types import check_id
from warmshelfd.spool.base import Announcement, PushedFile, check_files

FORM = 1
"""Form of what is written; another one is of another release, and nobody goes on with it."""

_FILE_COUNT_MAX = 1 << 20  # what was announced was checked by tighter limits, which may have changed since


def announcement_to_json(announcement: Announcement) -> bytes:
    """Return an announcement as JSON."""
    return json.dumps(
        {
            "form": FORM,
            "artifact_id": announcement.artifact_id,
            "base_id": announcement.base_id,
            "replace": announcement.replace,
            "keep_resident": announcement.keep_resident,
            "files": [[file.name, file.size_bytes] for file in announcement.files],
        }
    ).encode()


def announcement_from_json(text: bytes) -> Announcement:
    """Return the announcement again.

    Raises:
        ValueError: it is none; what is on a disk may be anything.
    """
    try:
        found = json.loads(text)
        if found["form"] != FORM:
            raise ValueError(f"is of form {found['form']}")
        announcement = Announcement(
            artifact_id=check_id(_typed(found["artifact_id"], str)),
            base_id=_typed(found["base_id"], str),
            files=tuple(PushedFile(_typed(name, str), _typed(size, int)) for name, size in found["files"]),
            replace=_typed(found["replace"], bool),
            keep_resident=_typed(found["keep_resident"], bool),
        )
        check_files(announcement.files, _FILE_COUNT_MAX)
    except Exception as error:
        raise ValueError(f"no announcement: {error}") from error
    return announcement


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value

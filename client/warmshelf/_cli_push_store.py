"""``warmshelf push ID DIR --store redis://...``: write files to a store, and register them from there.

Prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from warmshelf.client import Shelf
from warmshelf.redis_store import write_directory
from warmshelf.types import Artifact, check_id


def push_to_store(
    shelf: Shelf,
    artifact_id: str,
    directory: str | os.PathLike[str],
    store_url: str,
    *,
    base: str | None = None,
    replace: bool = False,
    keep: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Artifact:
    """Write a directory to a store under the artifact's ID, and register it from there.

    The daemon must be allowed to read below the store's URL.

    Raises:
        WarmshelfError: as ``redis_store.write_directory`` and ``Shelf.register``.
    """
    uri = write_directory(store_url, check_id(artifact_id), directory, progress=progress)
    return shelf.register(artifact_id, uri, base=base, replace=replace, keep=keep)

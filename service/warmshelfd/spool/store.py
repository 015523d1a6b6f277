"""A spool in a store that other nodes reach too, such as a bucket or Redis.

A push comes into a directory of this node first, which can be appended to and proven; only
whole files go on to the store, are read back there, and count once they are what was sent.
What this daemon brought there it notes beside what is unfinished: the store itself is
never searched, for other daemons may keep their pushes in the same place.

    DIR/incoming/PUSH_ID/stored     some of its files may be in the store
    DIR/kept/PUSH_ID/push.json      what it was; its files are in the store
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from warmshelf.errors import SpoolUnavailable
from warmshelfd.spool.base import Announcement, Held, PushedFile, is_push_id
from warmshelfd.spool.directory import DirectorySpool

Cancelled = Callable[[], bool]

_STORED = "stored"


class FileStore(Protocol):
    """Where whole files are kept, each push by its number.

    Every method may raise SpoolUnavailable, and LoadCancelled once ``cancelled`` says so; ``write`` SpoolFull.
    """

    @property
    def prefix(self) -> str:
        """What every URI of a push lies below."""

    def uri(self, push_id: str) -> str:
        """Return the URI of a push as a source, which other nodes can read."""

    def check(self, cancelled: Cancelled) -> None:
        """Return if the store keeps for good what it is given."""

    def write(self, push_id: str, files: Mapping[str, str], cancelled: Cancelled) -> None:
        """Write all files of a push, by name and path; the same again changes nothing."""

    def hash(self, push_id: str, names: Sequence[str], cancelled: Cancelled) -> list[bytes]:
        """Read the files back and return the SHA-256 of each."""

    def remove(self, push_id: str, sizes: Mapping[str, int] | None, cancelled: Cancelled) -> None:
        """Remove whatever there is of a push; ``sizes`` of its files where they are known. Idempotent."""


class StoreSpool(DirectorySpool):
    """Keeps pushes in a store; ``directory`` has those that are unfinished, and notes of the others."""

    is_remote = True

    def __init__(self, directory: str, store: FileStore) -> None:
        super().__init__(directory)
        self._store = store
        self._stopped = threading.Event()  # set once, by ``stop``

    def held(self) -> Iterator[Held]:
        """Return the pushes that this daemon has or has brought to the store.

        What was kept here before there was a store stays as it is: artifacts may mean it.
        """
        for one in super().held():
            if not one.is_kept:
                yield one
            elif os.path.exists(self._path("kept", one.push_id, _STORED)):
                self._forget_files(one.push_id)
                yield one

    def store(self, push_id: str, files: Sequence[PushedFile], hashes: Sequence[bytes], cancelled: Cancelled) -> None:
        """Bring the files to the store, and compare what it has then."""

        def ends() -> bool:
            return cancelled() or self._stopped.is_set()

        self._mark("incoming", push_id, _STORED)
        names = [file.name for file in files]
        self._store.check(ends)
        self._store.write(push_id, {file.name: self._file("incoming", push_id, file) for file in files}, ends)
        if self._store.hash(push_id, names, ends) != list(hashes):
            self._store.remove(push_id, _sizes(files), ends)
            raise SpoolUnavailable("the spool's store has other bytes than were written to it")

    def keep(self, push_id: str) -> str:
        """Note that the push is in the store, and give its files here up."""
        super().keep(push_id)
        self._forget_files(push_id)
        return self.uri(push_id)

    def uri(self, push_id: str) -> str:
        """Return the URI in the store."""
        return self._store.uri(push_id)

    def push_of(self, uri: str) -> str:
        """Return the number in a URI below the store's prefix."""
        push_id = uri[-32:]
        return push_id if is_push_id(push_id) and uri == self.uri(push_id) else ""

    def owns(self, uri: str) -> bool:
        """Say whether a URI is the store's prefix, or lies below it."""
        return uri == self._store.prefix or uri.startswith(f"{self._store.prefix}/")

    def discard(self, push_id: str) -> None:
        """Remove it from the store, if any of it may be there, and then here: so that it is tried again."""
        announcement = self._announced(push_id)
        if announcement is None or self._may_be_stored(push_id):
            sizes = _sizes(announcement.files) if announcement else None
            self._store.remove(push_id, sizes, self._stopped.is_set)
        super().discard(push_id)

    def stop(self) -> None:
        """End what waits for the store."""
        self._stopped.set()

    def _received(self, path: str, announcement: Announcement) -> tuple[int, ...]:
        """Return how far each file is; where the directory has none any more, the store has them all."""
        if os.path.dirname(path) == self._path("kept"):
            return tuple(file.size_bytes for file in announcement.files)
        return super()._received(path, announcement)

    def _may_be_stored(self, push_id: str) -> bool:
        marks = [self._path(state, push_id, _STORED) for state in ("incoming", "kept")]
        return any(map(os.path.exists, marks))

    def _announced(self, push_id: str) -> Announcement | None:
        for state in ("incoming", "kept"):
            with contextlib.suppress(OSError, ValueError):
                return self._read_announcement(self._path(state, push_id))
        return None

    def _forget_files(self, push_id: str) -> None:
        shutil.rmtree(self._path("kept", push_id, "files"), ignore_errors=True)


def _sizes(files: Sequence[PushedFile]) -> dict[str, int]:
    return {file.name: file.size_bytes for file in files}

"""A spool in a directory of this node.

    DIR/lock                        held by the one daemon whose spool it is
    DIR/incoming/PUSH_ID/push.json  what was announced; written last, so a push without it has not begun
    DIR/incoming/PUSH_ID/files/     the files so far; how long each is says how far it is
    DIR/kept/PUSH_ID/               the same, renamed here once every file is whole, proven and on the disk
    DIR/trash/                      on its way out

Files only ever grow at their end, so that a daemon that was killed goes on where the
disk is. What a power cut may have left of a file is found by its SHA-256.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NoReturn

from warmshelf.errors import ChunkCorrupt, DaemonInUse, LoadCancelled, SpoolFull, SpoolUnavailable
from warmshelfd.holders import describe, lock_holder
from warmshelfd.spool.announcement import announcement_from_json, announcement_to_json
from warmshelfd.spool.base import Announcement, Held, PushedFile, Spool, is_push_id

SYNC_BYTES = 64 << 20
"""Written bytes are brought to the disk this often, so that finishing a large push has little left to wait for."""

READ_BYTES = 1 << 20
"""How much is read at once to hash it: larger is no faster."""

ANNOUNCEMENT_BYTES_MAX = 4 << 20
"""Longest announcement that is read: a request has 1 MiB, JSON writes some characters in six."""

_OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ANNOUNCED = "push.json"
_ORPHAN = "orphan"
_SCHEME = "spool://"
_OLD_FILE = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_log = logging.getLogger(__name__)


class DirectorySpool(Spool):
    """Keeps pushes as directories. ``_lock`` is set by ``open`` and ``close`` only."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock: IO[bytes] | None = None

    @property
    def kept_directory(self) -> str:
        """Where each kept push has a directory of its number, and its files in ``files`` there."""
        return self._path("kept")

    def open(self) -> None:
        """Make the directories, and take the lock."""
        with _faults("opened"):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            for name in ("incoming", "kept", "trash"):
                os.makedirs(self._path(name), mode=0o700, exist_ok=True)
            self._lock = open(self._path("lock"), "ab")  # noqa: SIM115 - open for as long as it is held
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                pid = lock_holder(os.fstat(self._lock.fileno()))
                self.close()
                message = f"spool {self._directory!r} is in use by {describe(pid)}"
                raise DaemonInUse(message, directory=self._directory, pid_number=pid) from error

    def held(self) -> Iterator[Held]:
        """Return the pushes on the disk; what was on its way out goes now."""
        with _faults("read"):
            for name in os.listdir(self._path("trash")):
                shutil.rmtree(self._path("trash", name), ignore_errors=True)
            for state in ("incoming", "kept"):
                for push_id in filter(is_push_id, os.listdir(self._path(state))):
                    found = self._held(state, push_id)
                    if found is not None:
                        yield found

    def _held(self, state: str, push_id: str) -> Held | None:
        path = self._path(state, push_id)
        try:
            announcement = self._read_announcement(path)
            received = self._received(path, announcement)
        except (OSError, ValueError) as error:
            if state == "incoming":  # it had not begun, or nobody can go on with it
                self.discard(push_id)
            else:
                _log.warning("spool: %s is left alone, it cannot be read: %s", path, error)
            return None
        return Held(push_id, announcement, received, state == "kept")

    def _read_announcement(self, path: str) -> Announcement:
        with open(os.path.join(path, _ANNOUNCED), "rb") as file:
            return announcement_from_json(file.read(ANNOUNCEMENT_BYTES_MAX))

    def _received(self, path: str, announcement: Announcement) -> tuple[int, ...]:
        return tuple(os.stat(os.path.join(path, "files", file.name)).st_size for file in announcement.files)

    def free_bytes(self) -> int:
        """Return what the file system has for us."""
        with _faults("asked for room"):
            found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def begin(self, push_id: str, announcement: Announcement) -> None:
        """Make the files, and at last what says that they are all there."""
        path = self._path("incoming", push_id)
        try:
            with _faults("written"):
                os.makedirs(os.path.join(path, "files"), mode=0o700)
                for file in announcement.files:
                    os.close(os.open(os.path.join(path, "files", file.name), _NEW_FILE, 0o600))
                with open(os.open(os.path.join(path, "push.new"), _NEW_FILE, 0o600), "wb") as out:
                    out.write(announcement_to_json(announcement))
                    out.flush()
                    os.fsync(out.fileno())
                os.rename(os.path.join(path, "push.new"), os.path.join(path, _ANNOUNCED))
        except BaseException:
            self.discard(push_id)
            raise

    def append(self, push_id: str, file: PushedFile, offset: int, data: bytes) -> None:
        """Write at the end; now and then see to it that it is on the disk, and not in the page cache."""
        with _faults("written"), open(os.open(self._file("incoming", push_id, file), _OLD_FILE), "wb", 0) as out:
            size = os.fstat(out.fileno()).st_size
            if size != offset:
                raise ChunkCorrupt(f"{file.name!r} has {size} bytes, the chunk begins at {offset}", offset_bytes=offset)
            view = memoryview(data)
            done = 0
            while done < len(view):
                done += os.pwrite(out.fileno(), view[done:], offset + done)
            end = offset + len(view)
            if offset // SYNC_BYTES != end // SYNC_BYTES:
                os.fdatasync(out.fileno())
                os.posix_fadvise(out.fileno(), 0, end, os.POSIX_FADV_DONTNEED)

    def hash(self, push_id: str, files: Sequence[PushedFile], cancelled: Callable[[], bool]) -> list[bytes]:
        """Sync each file, and hash what the disk has of it."""
        with _faults("read"):
            hashes = [_hash(self._file("incoming", push_id, file), cancelled) for file in files]
            _sync(self._path("incoming", push_id, "files"))
            _sync(self._path("incoming", push_id))
        return hashes

    def keep(self, push_id: str) -> str:
        """Rename the directory."""
        with _faults("written"):
            os.rename(self._path("incoming", push_id), self._path("kept", push_id))
            _sync(self._path("kept"))
            _sync(self._path("incoming"))
        return self.uri(push_id)

    def uri(self, push_id: str) -> str:
        """Return the URI that the opener of the scheme takes."""
        return f"{_SCHEME}{push_id}"

    def push_of(self, uri: str) -> str:
        """Return what stands behind the scheme."""
        push_id = uri.removeprefix(_SCHEME)
        return push_id if uri.startswith(_SCHEME) and is_push_id(push_id) else ""

    def owns(self, uri: str) -> bool:
        """Say whether it is of the scheme."""
        return uri.startswith(_SCHEME)

    def orphan_seconds(self, push_id: str) -> float:
        """Leave a mark at the first time; its age is the answer."""
        path = self._mark("kept", push_id, _ORPHAN)
        with _faults("read"):
            return max(0.0, time.time() - os.stat(path).st_mtime)

    def _mark(self, state: str, push_id: str, name: str) -> str:
        """Make an empty file beside a push's files, unless it is there; return its path."""
        path = self._path(state, push_id, name)
        with _faults("written"), contextlib.suppress(FileExistsError):
            os.close(os.open(path, _NEW_FILE, 0o600))
        return path

    def discard(self, push_id: str) -> None:
        """Move it out of the way, all at once, and delete it."""
        trash = self._path("trash", f"{push_id}.{secrets.token_hex(4)}")
        with _faults("deleted"):
            for state in ("incoming", "kept"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self._path(state, push_id), trash)
            shutil.rmtree(trash, ignore_errors=True)

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _path(self, *parts: str) -> str:
        return os.path.join(self._directory, *parts)

    def _file(self, state: str, push_id: str, file: PushedFile) -> str:
        return self._path(state, push_id, "files", file.name)


def _hash(path: str, cancelled: Callable[[], bool]) -> bytes:
    hasher = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            if cancelled():
                raise LoadCancelled("hashing was stopped")
            hasher.update(buffer[:count])
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return hasher.digest()


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _faults(done: str) -> Iterator[None]:
    """Give failures of the file system in our words, without the path, which is no business of callers."""
    try:
        yield
    except OSError as error:
        _refuse(done, error)


def _refuse(done: str, error: OSError) -> NoReturn:
    _log.error("spool: %s", error)
    if error.errno in _OUT_OF_ROOM:
        raise SpoolFull(f"the spool's disk is full: {error.strerror}") from error
    raise SpoolUnavailable(f"the spool cannot be {done}: {error.strerror}") from error

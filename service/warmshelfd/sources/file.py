"""Files of this node as a source: one file, or the files of one directory.

Default deny: only what lies under an allowed prefix is looked at. Files are read and
never mapped, so one that is cut meanwhile makes an error, not a signal.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from warmshelf.errors import (
    Internal,
    InvalidSpec,
    SourceChangedDuringLoad,
    SourceNotAllowed,
    SourceNotFound,
    SourceTruncated,
    SourceUnavailable,
)
from warmshelfd.sources.base import OpenSource, SourceOpener
from warmshelfd.sources.file_uri import make_uri, parse_path
from warmshelfd.sources.regular import FileState, UncachedReader, is_directory, regular_state, state_of
from warmshelfd.sources.resolve import OutsidePrefixError, Prefixes

ENTRIES_MAX = 65536
"""Most entries of a directory: one with more holds no model but somebody's disk."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class FileOpener(SourceOpener):
    """Opens files and directories under the allowed prefixes."""

    scheme = "file"

    def __init__(self, allowed: Iterable[str]) -> None:
        """Allow each of these ``file:///`` URIs or absolute paths, and everything below it.

        Raises:
            InvalidSpec: one of them is neither.
        """
        self._prefixes = Prefixes([parse_path(text) for text in allowed])

    def canonical(self, uri: str) -> str:
        """Return the path as a ``file:///`` URI in its one spelling."""
        return make_uri(parse_path(uri))

    def open(self, uri: str, revision: str = "") -> OpenSource:
        """Look at a file, or list a directory."""
        path = parse_path(uri)
        if revision:
            raise InvalidSpec(f"{make_uri(path)}: files have no revisions", revision=revision)
        return FileSource(self._prefixes, path)


class FileSource(OpenSource):
    """The regular files that one path names, as they were when it was opened."""

    parallel_reads_max = os.cpu_count()  # nothing but the processor is waited for while files lie in memory

    def __init__(self, prefixes: Prefixes, path: str) -> None:
        """Look at what the path names; the errors are those of ``SourceOpener.open``."""
        self.uri = make_uri(path)
        self._prefixes = prefixes
        self._paths: dict[str, str] = {}  # where each file is, by name; not changed after this
        self._states: dict[str, FileState] = {}  # how it looked, by name; not changed after this
        self._lock = threading.Lock()
        self._readers: dict[str, UncachedReader] = {}  # made at a file's first read; guarded by _lock
        self._closed = False  # guarded by _lock
        with self._opened(path) as fd:
            if is_directory(fd):
                self._list(fd, path.rstrip("/"))
            else:
                self._add(path.rpartition("/")[2], path, _regular(fd, self.uri))
        self._sizes = MappingProxyType({name: state.size_bytes for name, state in self._states.items()})

    def files(self) -> Mapping[str, int]:
        """Return the sizes at opening."""
        return self._sizes

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Read, then check that the file is still what it was at opening."""
        reader = self._reader(name)
        uri = make_uri(self._paths[name])
        try:
            count = reader.read_into(offset, view)
            state = reader.state()
        except OSError as error:
            raise _unreadable(uri, error) from error
        self._check_unchanged(name, state)
        if count < len(view):
            size, expected = self._states[name].size_bytes, offset + len(view)
            raise SourceTruncated(
                f"{uri} has {size} bytes, {expected} are needed", uri=uri, size_bytes=size, expected_bytes=expected
            )

    def fingerprint(self, names: Sequence[str]) -> str:
        """Return a digest of size, times and inode of what each name leads to now."""
        digest = hashlib.sha256()
        for name in sorted(names):
            with self._opened(self._path(name)) as fd:
                now = _regular(fd, make_uri(self._path(name)))
            digest.update(f"{name}\0{now.size_bytes} {now.mtime_ns} {now.ctime_ns} {now.inode}\0".encode())
        return f"file:{digest.hexdigest()}"

    def close(self) -> None:
        """Close every file. No other thread may be reading."""
        with self._lock:
            self._closed = True
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def _list(self, directory: int, path: str) -> None:
        """Take note of the directory's regular files, also of those behind links."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        try:
            with os.scandir(fd) as entries:
                for count, entry in enumerate(entries):
                    if count == ENTRIES_MAX:
                        raise InvalidSpec(f"{self.uri} has more than {ENTRIES_MAX} entries", entry_count=count)
                    self._list_entry(entry, f"{path}/{entry.name}")
        finally:
            os.close(fd)

    def _list_entry(self, entry: os.DirEntry[str], path: str) -> None:
        if entry.is_file(follow_symlinks=False):
            self._add(entry.name, path, state_of(entry.stat(follow_symlinks=False)))
        elif entry.is_symlink():
            with self._opened(path) as fd:
                state = regular_state(fd)
            if state:
                self._add(entry.name, path, state)

    def _add(self, name: str, path: str, state: FileState) -> None:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidSpec(f"{self.uri} has a file whose name is not UTF-8: {name!a}") from None
        self._paths[name] = path
        self._states[name] = state

    def _path(self, name: str) -> str:
        if name not in self._paths:
            raise SourceNotFound(f"{self.uri} has no file {name!r}", uri=self.uri, file=name)
        return self._paths[name]

    def _reader(self, name: str) -> UncachedReader:
        path = self._path(name)
        with self._lock:
            if self._closed:
                raise Internal(f"{self.uri} is closed")
            if name not in self._readers:
                self._readers[name] = self._open_reader(name, path)
            return self._readers[name]

    def _open_reader(self, name: str, path: str) -> UncachedReader:
        """Open the very file that was looked at when the source was opened."""
        with self._opened(path) as fd:
            self._check_unchanged(name, regular_state(fd))
            # Through /proc it is this file and no other, whatever its name now leads to.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
            return UncachedReader(os.open(f"/proc/self/fd/{fd}", flags))

    def _check_unchanged(self, name: str, state: FileState | None) -> None:
        if state != self._states[name]:
            uri = make_uri(self._paths[name])
            raise SourceChangedDuringLoad(f"{uri} is not what it was when it was opened", uri=uri)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """Give an O_PATH descriptor, and every failure of the body in our words."""
        uri = make_uri(path)
        try:
            fd = self._prefixes.open(path)
            try:
                yield fd
            finally:
                os.close(fd)
        except OutsidePrefixError:
            # Nothing here depends on what is there: that is not for the caller to know.
            raise SourceNotAllowed(f"{uri} is outside the allowed prefixes", uri=uri) from None
        except OSError as error:
            raise _unreadable(uri, error) from error


def _regular(fd: int, uri: str) -> FileState:
    state = regular_state(fd)
    if state is None:
        raise InvalidSpec(f"{uri} is neither a regular file nor a directory", uri=uri)
    return state


def _unreadable(uri: str, error: OSError) -> SourceNotFound | SourceUnavailable:
    why = error.strerror or type(error).__name__
    if error.errno in _ABSENT:
        return SourceNotFound(f"{uri}: {why}", uri=uri)
    return SourceUnavailable(f"{uri} cannot be read: {why}", uri=uri)

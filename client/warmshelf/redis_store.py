"""Writes a directory of files into Redis, in the layout that daemons read (docs/redis-layout.md).

Chunks first, under keys of their own, and the manifest last: until then nobody sees
anything, and from then on everybody sees all of it. What a writer that died left behind
ends by itself. Needs redis-py, which is imported when something is written.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import crc32c

from warmshelf.errors import InvalidRequest, SourceChangedDuringLoad, SourceUnavailable, WarmshelfError
from warmshelf.redis_layout import (
    CHUNK_BYTES,
    FIELDS,
    FILES_MAX,
    StoredFile,
    StoredManifest,
    as_fields,
    chunk_key,
    chunk_keys,
    decode_manifest,
    encode_manifest,
    manifest_key,
)
from warmshelf.redis_uri import RedisUri, parse_store

if TYPE_CHECKING:
    import redis

USERNAME_VARIABLE = "WARMSHELF_STORE_USERNAME"
PASSWORD_VARIABLE = "WARMSHELF_STORE_PASSWORD"  # noqa: S105 - the name of a variable
CA_FILE_VARIABLE = "WARMSHELF_STORE_CA_FILE"

ABANDONED_SECONDS = 24 * 3600
"""How long chunks stay that never got a manifest: longer than any writing takes."""

BATCH_COUNT = 8
"""Chunks of one round trip: 8 MiB, so a slow network shows progress and a server holds no more."""

KEYS_COUNT = 512
"""Keys of one round trip of short commands."""

SOCKET_SECONDS = 30.0
"""How long the server may take for one batch."""

RETRY_COUNT = 2
"""How often a batch is sent again over a new connection: a chunk may be written twice."""

Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to log in at the store; by default what the environment says."""

    username: str | None = None
    password: str | None = None
    ca_file: str | None = None

    @classmethod
    def of_environment(cls) -> StoreAccess:
        """Return what WARMSHELF_STORE_USERNAME, _PASSWORD and _CA_FILE say."""
        names = (USERNAME_VARIABLE, PASSWORD_VARIABLE, CA_FILE_VARIABLE)
        return cls(*(os.environ.get(name) or None for name in names))


def write_directory(
    store: str,
    name: str,
    path: str | os.PathLike[str],
    *,
    access: StoreAccess | None = None,
    progress: Told | None = None,
) -> str:
    """Write the files of a directory, or one file; return the URI to register.

    The directory's own regular files are written, also behind links; hidden ones and
    directories are not. What was there under the name is replaced at once.

    Args:
        store: ``redis://HOST:PORT/DB`` or with names below which it lies; without user and password.
        name: what it is called there.
        path: the directory, or a file.
        access: how to log in.
        progress: told how many bytes have been written so far.

    Raises:
        InvalidSpec: the store or the name cannot be used.
        InvalidRequest: there is no such directory, or redis-py is not installed.
        SourceChangedDuringLoad: a file changed while it was read; nothing was written.
        SourceUnavailable: the server cannot be reached, or refuses.
    """
    uri = parse_store(store).below(name)
    files = _files(os.fspath(path))
    with _connected(uri, access or StoreAccess.of_environment()) as client:
        _Writer(client, uri, progress or (lambda _: None)).write(files)
    return str(uri)


def _files(path: str) -> list[str]:
    """Return the paths of the files to write, by name."""
    try:
        if not os.path.isdir(path):
            return [path] if _is_regular(path) else _none(path)
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
        found = [one for name in names if _is_regular(one := os.path.join(path, name))]
    except OSError as error:
        raise InvalidRequest(f"{path!r} cannot be read: {error.strerror}") from None
    if not 0 < len(found) <= FILES_MAX:
        raise InvalidRequest(f"{path!r} has {len(found)} files, from 1 to {FILES_MAX} can be written")
    return found


def _is_regular(path: str) -> bool:
    return stat.S_ISREG(os.stat(path).st_mode)


def _none(path: str) -> list[str]:
    raise InvalidRequest(f"{path!r} is neither a directory nor a regular file")


class _Writer:
    """One writing."""

    def __init__(self, client: redis.Redis, uri: RedisUri, told: Told) -> None:
        self._client = client
        self._name = uri.name
        self._where = str(uri)
        self._told = told
        self._done_bytes = 0

    def write(self, paths: Sequence[str]) -> None:
        """Write chunks, make them stay, write the manifest, and remove what was there before."""
        manifest = StoredManifest(secrets.token_hex(16), CHUNK_BYTES, ())
        files: list[StoredFile] = []
        try:
            files.extend(self._write_file(path, manifest) for path in paths)
            manifest = StoredManifest(manifest.etag, CHUNK_BYTES, tuple(files))
            fields = encode_manifest(manifest)
            self._keep(chunk_keys(self._name, manifest))
            before = self._replace(fields)
        except BaseException:
            with suppress(Exception):  # what stays ends by itself
                self._remove(chunk_keys(self._name, StoredManifest(manifest.etag, CHUNK_BYTES, tuple(files))))
            raise
        self._remove(before)

    def _write_file(self, path: str, manifest: StoredManifest) -> StoredFile:
        name = os.path.basename(path)
        crcs = bytearray()
        with open(path, "rb", buffering=0) as file:
            before = _state(file.fileno())
            for first, batch in _batches(file.fileno(), before[0]):
                pipeline = self._client.pipeline(transaction=False)
                for index, chunk in enumerate(batch, first):
                    crcs += crc32c.crc32c(chunk).to_bytes(4, "little")
                    pipeline.set(chunk_key(self._name, manifest.etag, name, index), chunk, ex=ABANDONED_SECONDS)
                pipeline.execute()
                self._done_bytes += sum(map(len, batch))
                self._told(self._done_bytes)
            if _state(file.fileno()) != before or len(crcs) != 4 * -(-before[0] // CHUNK_BYTES):
                raise SourceChangedDuringLoad(f"{path!r} changed while it was read", file=name)
        return StoredFile(name, before[0], bytes(crcs))

    def _keep(self, keys: Sequence[bytes]) -> None:
        """Make chunks stay for good."""
        for some in _grouped(keys):
            pipeline = self._client.pipeline(transaction=False)
            for key in some:
                pipeline.persist(key)
            if not all(pipeline.execute()):
                raise SourceUnavailable(f"{self._where}: the server lost chunks before all were written")

    def _replace(self, fields: dict[bytes, bytes]) -> list[bytes]:
        """Write the manifest; return the keys of the chunks that the one before it had."""
        key = manifest_key(self._name)
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hmget(key, list(FIELDS))
        pipeline.delete(key)
        pipeline.hset(key, items=[part for field in fields.items() for part in field])
        values = pipeline.execute()[0]
        with suppress(WarmshelfError):  # nothing was there, or nothing that can be read
            return chunk_keys(self._name, decode_manifest(self._where, as_fields(values)))
        return []

    def _remove(self, keys: Sequence[bytes]) -> None:
        for some in _grouped(keys):
            self._client.unlink(*some)


def _batches(fd: int, size: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the file's chunks, some at a time, with the number of the first."""
    for start in range(0, size, BATCH_COUNT * CHUNK_BYTES):
        ends = range(start, min(start + BATCH_COUNT * CHUNK_BYTES, size), CHUNK_BYTES)
        yield start // CHUNK_BYTES, [_read(fd, at, min(CHUNK_BYTES, size - at)) for at in ends]


def _read(fd: int, at: int, size: int) -> bytes:
    parts = b""
    while len(parts) < size and (part := os.pread(fd, size - len(parts), at + len(parts))):
        parts += part
    return parts


def _state(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _grouped(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for first in range(0, len(keys), KEYS_COUNT):
        yield keys[first : first + KEYS_COUNT]


@contextmanager
def _connected(uri: RedisUri, access: StoreAccess) -> Iterator[redis.Redis]:
    """Give a client; turn its errors into ours, without what a server said: that may repeat a password."""
    try:
        import redis  # noqa: PLC0415 - comes with an extra
        from redis.backoff import ExponentialBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidRequest("writing to Redis needs redis-py: pip install 'warmshelf[redis]'") from None
    options: dict[str, Any] = {"ssl": True, "ssl_ca_certs": access.ca_file} if uri.is_tls else {}
    client = redis.Redis(
        host=uri.host.strip("[]"),
        port=uri.port,
        db=uri.db or 0,
        username=access.username,
        password=access.password,
        socket_timeout=SOCKET_SECONDS,
        socket_connect_timeout=SOCKET_SECONDS,
        retry=Retry(ExponentialBackoff(cap=1.0, base=0.1), RETRY_COUNT),
        **options,
    )
    try:
        with client:
            yield client
    except redis.AuthenticationError:
        raise _failed(uri, "refuses the login; set WARMSHELF_STORE_USERNAME and WARMSHELF_STORE_PASSWORD") from None
    except redis.OutOfMemoryError:
        raise _failed(uri, "is out of memory") from None
    except redis.TimeoutError:
        raise _failed(uri, "does not answer") from None
    except redis.ConnectionError:
        raise _failed(uri, "cannot be reached") from None
    except redis.RedisError as error:
        raise _failed(uri, f"refuses to write ({type(error).__name__})") from None


def _failed(uri: RedisUri, what: str) -> SourceUnavailable:
    return SourceUnavailable(f"{uri}: the server {what}", uri=str(uri))

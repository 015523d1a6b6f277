"""What every source in Redis does alike, whoever wrote what is there.

It looks at what is there when it is opened, and again whenever a value turns out to be
missing or short: whether the source is gone, is another one, or is damaged is told by
that second look.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from warmshelf.errors import MalformedArtifact, SourceChangedDuringLoad, SourceNotFound, SourceTruncated
from warmshelf.redis_uri import RedisUri
from warmshelfd.redis_wire import RedisRefusedError, RedisTooLongError
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.redis_pool import RedisPool
from warmshelfd.sources.redis_ranges import ShortValueError, Want, read_wants


class StoredSource(OpenSource):
    """The files of one artifact in Redis."""

    reads_one_version = False
    """Whether a read either gives bytes of what was there at opening, or fails."""

    def __init__(self, uri: RedisUri, pool: RedisPool) -> None:
        self.uri = str(uri)
        self._name = uri.name
        self._pool = pool
        # Set once by the opening, before another thread knows the source.
        self._sizes: Mapping[str, int] = MappingProxyType({})
        self._look = ""
        self._is_fresh = True  # until the first fingerprint

    def files(self) -> Mapping[str, int]:
        """Return the sizes at opening."""
        return self._sizes

    def as_opened(self, names: Collection[str]) -> str:
        """Return how all that was there looked at opening: the files of one source change together."""
        return f"redis:{self._look}" if all(name in self._sizes for name in names) else ""

    def fingerprint(self, names: Sequence[str]) -> str:
        """Return how all that is there looks now; the first time, before tensors are read, how it looked at opening."""
        for name in names:
            self._check_name(name)
        is_sure, self._is_fresh = self._is_fresh or self.reads_one_version, False
        return f"redis:{self._look if is_sure else self._look_now()}"

    def stop(self) -> None:
        """Make reads under way end soon with LoadCancelled."""
        self._pool.stop()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    @abstractmethod
    def _look_now(self) -> str:
        """Return a digest of what is there, all but the tensors' bytes.

        Raises:
            SourceNotFound: nothing is there.
            MalformedArtifact: something else is there.
        """

    def _check_name(self, name: str) -> int:
        """Return the size of a file that there is."""
        if name not in self._sizes:
            raise SourceNotFound(f"{self.uri} has no file {name!r}", uri=self.uri, file=name)
        return self._sizes[name]

    def _check_range(self, name: str, offset: int, size: int) -> None:
        file_size, end = self._check_name(name), offset + size
        if end > file_size:
            raise SourceTruncated(
                f"{self.uri}: {name} has {file_size} bytes, {end} are needed",
                uri=self.uri,
                file=name,
                size_bytes=file_size,
                expected_bytes=end,
            )

    def _read(self, wants: Sequence[Want]) -> None:
        """Fill what is wanted, or say what has become of it."""
        if not wants:
            return
        try:
            self._pool.run(lambda wire: read_wants(wire, wants))
        except ShortValueError as error:
            raise self._short(error.key, error.end) from None
        except (RedisRefusedError, RedisTooLongError) as error:
            raise self._unfit(error) from None

    def _short(self, key: bytes, end: int) -> SourceChangedDuringLoad | SourceTruncated:
        if self._look_now() != self._look:
            return SourceChangedDuringLoad(f"{self.uri} is not what it was when it was opened", uri=self.uri)
        shown = key.decode(errors="backslashreplace")
        return SourceTruncated(
            f"{self.uri}: the value of {shown} is missing or ends before byte {end}",
            uri=self.uri,
            key=shown,
            expected_bytes=end,
        )

    def _unfit(self, error: RedisRefusedError | RedisTooLongError) -> MalformedArtifact:
        if isinstance(error, RedisTooLongError):
            return MalformedArtifact(
                f"{self.uri}: a value has {error.size_bytes} bytes, at most {error.size_max} are allowed",
                uri=self.uri,
                size_bytes=error.size_bytes,
            )
        return MalformedArtifact(f"{self.uri}: one of its keys is of another type than it should be", uri=self.uri)

    def _gone(self) -> SourceNotFound:
        return SourceNotFound(f"{self.uri}: nothing is there", uri=self.uri)

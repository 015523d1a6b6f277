"""What every source can do: list an artifact's files, read ranges of them, notice changes.

A source is opened once per inspection or load and closed after it. It knows
names, sizes and bytes; it does not know what they mean. All of it is blocking
and safe to call from several threads at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from warmshelfd import stopping

Range = tuple[str, int, int]
"""A part of one file: its name, where it begins, how many bytes it has."""

Known = tuple[str, int, bytes]
"""The same with what was there: name, where it begins, bytes."""

READ_STEP_BYTES = 8 << 20
"""Read this much between two looks at whether anybody still wants it."""


class OpenSource(ABC):
    """The files of one artifact, as they were when it was opened.

    Every method may raise SourceUnavailable (try again), SourceNotAllowed, or
    what it names itself.
    """

    uri: str
    """Where the files are, in canonical form and without secrets."""

    parallel_reads_max: int | None = None
    """How many reads at once are worth it, if the source knows."""

    parallel_reads_min: int = 1
    """How many reads at once it needs to be fast, also where files get along with fewer."""

    gap_bytes: int = 0
    """How many bytes are read as soon as one more request is made; 0 where a read costs no round trip."""

    @abstractmethod
    def files(self) -> Mapping[str, int]:
        """Return the size in bytes of every file, by its name relative to the source.

        A source that is a single file has one entry, under its last path part.
        Only the source's own directory is listed, not those below it.
        """

    @abstractmethod
    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Fill the view with the file's bytes from ``offset`` on, all of it.

        Raises:
            SourceNotFound: there is no such file any more.
            SourceTruncated: the file ends before the view is full.
            SourceChangedDuringLoad: the file is no longer what it was when first opened.
        """

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of a file; errors as ``read_into``."""
        buffer = bytearray(size)
        with memoryview(buffer) as view:
            for start in range(0, size, READ_STEP_BYTES) or (0,):  # also an empty read says whether the file is there
                stopping.check()
                self.read_into(name, offset + start, view[start : start + READ_STEP_BYTES])
        return bytes(buffer)

    def expect(self, ranges: Iterable[Range]) -> None:  # noqa: B027 - most sources have no use for it
        """Say what will be read soon; a source with round trips reads all of it at once, up to the files' ends.

        Raises:
            SourceUnavailable: it cannot be read just now.
        """

    def as_opened(self, names: Collection[str]) -> str:  # noqa: ARG002 - for those that need not ask
        """Return what ``fingerprint`` would have said at opening; "" if that is not known without asking."""
        return ""

    def hold(self, reads: Iterable[Known]) -> None:  # noqa: B027 - most sources have no use for it
        """Take bytes that were read when the files looked as they do: whoever reads them again may get these."""

    @abstractmethod
    def fingerprint(self, names: Sequence[str]) -> str:
        """Return how the named files look now; equal while none of them changes.

        Where every read gives the bytes of what was opened or fails, how they looked then will do.

        Raises:
            SourceNotFound: one of them is gone.
        """

    def stop(self) -> None:  # noqa: B027 - what is never waited for long need not be stopped
        """Have reads under way, and later ones, end soon with LoadCancelled. For any thread; never waits."""

    @abstractmethod
    def close(self) -> None:
        """Close every file. Idempotent."""

    def __enter__(self) -> OpenSource:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SourceOpener(ABC):
    """Opens the sources of one URI scheme."""

    scheme: str

    @abstractmethod
    def canonical(self, uri: str) -> str:
        """Return the one spelling of the URI under which it is kept and compared.

        Raises:
            InvalidSpec: it is no URI of this scheme.
        """

    def place(self, uri: str) -> str:  # noqa: ARG002 - for those that have several
        """Return what is waited for where the URI is read, such as a server; "" for this node.

        Loads from one place share threads, so that they take none from others. So there
        may be only as many places as the operator has allowed.
        """
        return ""

    @abstractmethod
    def open(self, uri: str, revision: str = "") -> OpenSource:
        """Open what the URI names; a remote source may look for it later, when its files are asked for.

        Raises:
            SourceNotAllowed: outside the allowed prefixes, whether or not it exists.
            SourceNotFound: nothing is there.
            InvalidSpec: a revision, where the scheme has none.
        """

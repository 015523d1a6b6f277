"""Models on a Hugging Face hub as a source, through huggingface_hub.

A revision is resolved to its commit once, when the source is opened; a commit never
changes. So what is read is of one commit, whatever happens to the branch meanwhile.
Files are not downloaded first: ranges of them are read straight to where they belong.

How files look is said by the hub's own digests of them and not by the commit: another
commit that leaves an artifact's files as they are does not change the artifact.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from warmshelf.errors import (
    InvalidConfig,
    InvalidSpec,
    SourceNotAllowed,
    SourceNotFound,
    SourceTruncated,
    SourceUnavailable,
    WarmshelfError,
)
from warmshelfd.sources.ahead import ReadAhead
from warmshelfd.sources.base import OpenSource, Range, SourceOpener
from warmshelfd.sources.http_exchange import Reach
from warmshelfd.sources.hub_reading import Hub, HubReader, passing
from warmshelfd.sources.hub_uri import HubPlace, check_revision, parse_hub_uri
from warmshelfd.sources.limits import GAP_BYTES, TimeLimits
from warmshelfd.sources.retrying import retried
from warmshelfd.sources.settings import SourceSettings, is_below, read_secret, settings_for

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

ENTRIES_MAX = 65536
"""Most files of a repository; the largest public models have some thousand."""

_DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a commit. ``identity`` is the hub's digest of its bytes."""

    path: str
    size_bytes: int
    identity: str


class HubOpener(SourceOpener):
    """Opens repositories under the allowed prefixes."""

    scheme = "hf"

    def __init__(
        self,
        allowed: Iterable[str],
        settings: Sequence[SourceSettings] = (),
        limits: TimeLimits | None = None,
        parallel_reads: int = 8,
    ) -> None:
        """Allow each of these ``hf://`` prefixes: an organisation, a repository at any revision or at one, a path.

        Raises:
            InvalidSpec: one of them is none.
        """
        self._allowed = tuple(map(_check_prefix, allowed))
        self._settings = settings
        self._limits = limits or TimeLimits()
        self._parallel_reads = parallel_reads
        self._reach = Reach((), (), self._limits)

    def canonical(self, uri: str) -> str:
        """Return the URI in its one spelling."""
        return parse_hub_uri(uri).uri

    def place(self, uri: str) -> str:
        """Return the hub, if the repository is allowed."""
        place = parse_hub_uri(uri)
        settings = self._settings_of(place)
        return f"hf:{settings.endpoint or '' if settings else ''}" if self._allows(place) else ""

    def open(self, uri: str, revision: str = "") -> OpenSource:
        """Check that the repository is allowed. Nothing is asked for before the files are."""
        place = parse_hub_uri(uri)
        if not self._allows(place):
            raise SourceNotAllowed(f"{place.uri} is outside the allowed prefixes", uri=place.uri)
        if revision and place.revision not in ("", check_revision(revision)):
            raise InvalidSpec(f"{place.uri} names one revision, the spec another", revision=revision)
        wanted = place.revision or check_revision(revision or _DEFAULT_REVISION)
        return HubSource(self._hub(place), self._reach, place, wanted, self._parallel_reads)

    def _allows(self, place: HubPlace) -> bool:
        return any(is_below(one, prefix) for one in (place.uri, place.bare_uri) for prefix in self._allowed)

    def _settings_of(self, place: HubPlace) -> SourceSettings | None:
        found = (settings_for(uri, self._settings) for uri in (place.uri, place.bare_uri))
        return max((one for one in found if one), key=lambda one: len(one.prefix), default=None)

    def _hub(self, place: HubPlace) -> Hub:
        settings = self._settings_of(place)
        if settings is None:
            return Hub()
        token = read_secret(settings.bearer_token) if settings.bearer_token else b""
        if not token.isascii() or b"\n" in token:
            raise InvalidConfig(f"bearer_token of source {settings.prefix!r} is not a token")
        return Hub(settings.endpoint, token.decode() or None, settings)


@dataclass(frozen=True, slots=True)
class _Commit:
    """The commit that was resolved: its files and their sizes by name, and who reads them."""

    files: Mapping[str, HubFile]
    sizes: Mapping[str, int]
    reader: HubReader


class HubSource(OpenSource):
    """The files of one commit that one URI names."""

    gap_bytes = GAP_BYTES

    def __init__(self, hub: Hub, reach: Reach, place: HubPlace, revision: str, parallel_reads: int) -> None:
        self.uri = place.uri
        self.parallel_reads_min = parallel_reads
        self._hub, self._place, self._revision, self._reach = hub, place, revision, reach
        self._limits = reach.limits
        self._stopped = threading.Event()
        self._ahead = ReadAhead(self._fetch)
        self._lock = threading.Lock()  # guards _commit, and is held while it is resolved
        self._commit: _Commit | None = None

    def files(self) -> Mapping[str, int]:
        """Return the sizes in the commit."""
        return self._resolved().sizes

    def expect(self, ranges: Iterable[Range]) -> None:
        """Read the ranges at once, each cut to its file."""
        sizes = self._resolved().sizes
        self._ahead.expect((name, at, min(size, sizes[name] - at)) for name, at, size in ranges if at < sizes[name])

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Read from the commit."""
        file = self._file(name)
        if offset + len(view) > file.size_bytes:
            raise SourceTruncated(
                f"{self.uri}: {file.path} has {file.size_bytes} bytes, {offset + len(view)} are needed",
                uri=self.uri,
                size_bytes=file.size_bytes,
                expected_bytes=offset + len(view),
            )
        if view.nbytes and not self._ahead.copy_to(name, offset, view):
            self._read(file, offset, view)

    def fingerprint(self, names: Sequence[str]) -> str:
        """Return a digest of the hub's own digests of the files, which cannot change in a commit."""
        digest = hashlib.sha256()
        for name in sorted(names):
            file = self._file(name)
            digest.update(f"{name}\0{file.size_bytes} {file.identity}\0".encode())
        return f"hf:{digest.hexdigest()}"

    def stop(self) -> None:
        """Give up reads under way."""
        self._stopped.set()
        commit = self._commit  # not under the lock, which is held while the hub is asked
        if commit is not None:
            commit.reader.stop()

    def close(self) -> None:
        """Forget what was read ahead, and close the connections."""
        self._ahead.clear()
        if self._commit is not None:
            self._commit.reader.close()

    def _resolved(self) -> _Commit:
        with self._lock:
            if self._commit is None:
                with translated(self.uri):
                    self._commit = self._resolve()
            return self._commit

    def _resolve(self) -> _Commit:
        """Ask the hub which commit the revision is, and for its files."""
        info = retried(self._ask, self._limits.retry, self._stopped)
        commit = info.sha or ""
        if not _COMMIT.fullmatch(commit):
            raise SourceUnavailable(
                f"{self.uri}: the hub does not say which commit {self._revision!r} is", uri=self.uri
            )
        files = dict(_files_of(info, self._place.path, self.uri))
        if not files:
            raise SourceNotFound(f"{self.uri} has no file {self._place.path!r} and none below it", uri=self.uri)
        sizes = MappingProxyType({name: file.size_bytes for name, file in files.items()})
        reader = HubReader(self._hub, self._reach, self._place.repository, commit, self._limits, self._stopped)
        return _Commit(files, sizes, reader)

    def _ask(self) -> ModelInfo:
        with passing(self.uri):
            return _model_info(self._hub, self._place, self._revision, self._limits)

    def _fetch(self, name: str, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self._read(self._file(name), offset, memoryview(buffer))
        return bytes(buffer)

    def _read(self, file: HubFile, offset: int, view: memoryview) -> None:
        with translated(f"{self.uri}: {file.path}"):
            self._resolved().reader.read_into(file.path, file.size_bytes, offset, view)

    def _file(self, name: str) -> HubFile:
        files = self._resolved().files
        if name not in files:
            raise SourceNotFound(f"{self.uri} has no file {name!r}", uri=self.uri, file=name)
        return files[name]


def _model_info(hub: Hub, place: HubPlace, revision: str, limits: TimeLimits) -> ModelInfo:
    from huggingface_hub import HfApi  # noqa: PLC0415 - takes half a second, and the daemon may start without it

    # False: no token that lies about on the machine. Those are given in the configuration.
    api = HfApi(endpoint=hub.endpoint, token=hub.token or False)
    return api.model_info(place.repository, revision=revision, files_metadata=True, timeout=limits.answer_seconds)


def _files_of(info: ModelInfo, path: str, uri: str) -> Iterator[tuple[str, HubFile]]:
    """Yield the file that is the path, or the files right below it, by their names."""
    siblings = info.siblings or []
    if len(siblings) > ENTRIES_MAX:
        raise InvalidSpec(f"{uri} has more than {ENTRIES_MAX} files", entry_count=len(siblings))
    for sibling in siblings:
        folder, _, name = sibling.rfilename.rpartition("/")
        if path not in (sibling.rfilename, folder):
            continue
        identity = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if sibling.size is None or not identity:
            raise SourceUnavailable(f"{uri}: the hub does not say what {sibling.rfilename!r} is", uri=uri)
        yield name, HubFile(sibling.rfilename, sibling.size, identity)


def _check_prefix(text: str) -> str:
    """Return an allowed prefix in its one spelling; it may end after the organisation."""
    organisation = text.removesuffix("/")
    if organisation.count("/") == 2:  # noqa: PLR2004 - the two of hf://
        return parse_hub_uri(f"{organisation}/x").uri.removesuffix("/x")
    return parse_hub_uri(text).uri


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Give every failure of the library in our words: its own may have a URL with a signature."""
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        yield
    except WarmshelfError:
        raise
    except errors.GatedRepoError:
        raise SourceNotAllowed(f"{what}: the hub wants a token that was granted access to it") from None
    except errors.RevisionNotFoundError:
        raise SourceNotFound(f"{what}: there is no such revision") from None
    except errors.RepositoryNotFoundError:
        raise SourceNotFound(
            f"{what}: there is no such repository, or it is private and the token not for it"
        ) from None
    except errors.EntryNotFoundError:
        raise SourceNotFound(f"{what}: there is no such file") from None
    except errors.OfflineModeIsEnabled:
        raise SourceUnavailable(f"{what}: HF_HUB_OFFLINE is set in the daemon's environment") from None
    except errors.HfHubHTTPError as error:
        raise _of_status(what, error.response.status_code) from None
    except Exception as error:  # noqa: BLE001 - whatever its HTTP library raises
        raise SourceUnavailable(f"{what} cannot be read: {type(error).__name__}") from None


def _of_status(what: str, status: int) -> WarmshelfError:
    if status in (401, 403):
        return SourceNotAllowed(f"{what}: the hub refuses the daemon's token ({status})")
    return SourceUnavailable(f"{what} cannot be read: {status}")

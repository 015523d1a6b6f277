"""Files of web servers as a source: one file, or the files of one directory.

Directories are not listed: a directory is what is there of a fixed list of names, and
what its weights index names beside them. Each file must come in ranges and have an
ETag or a date; every answer is compared with how the file looked when it was first
asked for. Does not know what files hold; how an index is read is told to it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol
from urllib.parse import quote

from warmshelf.errors import InvalidSpec, SourceNotFound, SourceTruncated, SourceUnavailable
from warmshelfd.sources.base import OpenSource, SourceOpener
from warmshelfd.sources.http_answers import ABSENT, HttpState, check_part, read_whole_state
from warmshelfd.sources.http_exchange import PORTS, Answer, Exchange, Reach
from warmshelfd.sources.retrying import TryAgain, check_stopped, retried
from warmshelfd.sources.url_prefixes import Url, parse_url

FILE_SUFFIXES = (".safetensors", ".tensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""A URL that ends so is a file; pickles are among them so that their refusal says what they are."""

ADAPTER_CONFIG = "adapter_config.json"
INDEX = "model.safetensors.index.json"

WEIGHT_NAMES = (
    ADAPTER_CONFIG,
    "adapter_model.safetensors",
    "adapter_model.tensors",
    "adapter_model.bin",
    INDEX,
    "model.safetensors",
    "model.tensors",
    "pytorch_model.bin",
)
"""The names that formats choose by."""

SMALL_NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "quantize_config.json",
)
"""Config and tokenizer files under the names that transformers writes."""

SHARDS_MAX = 4096
"""Most files that an index may name; each is asked for, and the largest public models have some 200."""

HEAD_BYTES = 64 << 10
"""What is asked of a file to learn of it. It is kept: a small file, or the header of an adapter, is then there."""

_HEADS_BYTES_MAX = 8 << 20
"""What of those beginnings is kept in all."""

_ASKED_AT_ONCE = 8
"""How many files are asked for at once."""

_STEP_BYTES = 256 << 10
"""Read this much between two notes of how far it is: what a broken connection may cost again."""


class Files(Protocol):
    """The files that are known so far, for whoever reads the index."""

    def files(self) -> Mapping[str, int]:
        """Return sizes in bytes by name."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""


NamesOf = Callable[[Files, str], Collection[str]]
"""Returns the files that an index names."""


class HttpOpener(SourceOpener):
    """Opens files and directories of web servers, under the allowed prefixes."""

    def __init__(self, scheme: str, reach: Reach, names_of: NamesOf) -> None:
        """``scheme`` is http or https; ``names_of`` reads an index."""
        self.scheme = scheme
        self._reach = reach
        self._names_of = names_of

    def canonical(self, uri: str) -> str:
        """Return the URL in its one spelling; a directory's ends with a slash."""
        return str(_parse(uri))

    def place(self, uri: str) -> str:
        """Return the server that the URL is of, if it is allowed."""
        url = _parse(uri)
        return url.origin if self._reach.prefixes.allow(str(url)) else ""

    def open(self, uri: str, revision: str = "") -> OpenSource:
        """Check that the URL is allowed. Nothing is asked for before the files are."""
        url = _parse(uri)
        if revision:
            raise InvalidSpec(f"{url}: files of web servers have no revisions", revision=revision)
        self._reach.prefixes.check(str(url))
        return HttpSource(self._reach, url, self._names_of)


def _parse(uri: str) -> Url:
    url = parse_url(uri, PORTS)
    if url.path.endswith(("/", *FILE_SUFFIXES)):
        return url
    return parse_url(f"{url}/", PORTS)


@dataclass(frozen=True, slots=True)
class _Found:
    """A file that is there: where, how it looked, and how it begins."""

    url: Url
    state: HttpState
    head: bytes


class HttpSource(OpenSource):
    """The files that one URL names, as they were when they were first asked for."""

    def __init__(self, reach: Reach, url: Url, names_of: NamesOf) -> None:
        self.uri = str(url)
        self._url = url
        self._names_of = names_of
        self._exchange = Exchange(reach)
        self._retry = reach.limits.retry
        self._listing = threading.Lock()  # held while the files are asked for; guards the two below
        self._found: dict[str, _Found] = {}  # by name
        self._sizes: Mapping[str, int] | None = None  # None until all are known
        self._heads_bytes = 0  # what is kept of beginnings; a race may keep a little more

    def files(self) -> Mapping[str, int]:
        """Ask for the files, the first time."""
        with self._listing:
            if self._sizes is None:
                self._list()
                self._sizes = self._known().files()
            return self._sizes

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Read a range, and go on behind the last good byte where a connection breaks."""
        self.files()
        self._read_into(self._file(name), offset, view)

    def fingerprint(self, names: Sequence[str]) -> str:
        """Return a digest of size, ETag and date of each file now."""
        self.files()
        ordered = sorted(names)
        digest = hashlib.sha256()
        for name, found in zip(ordered, self._look([self._file(name).url for name in ordered], 1), strict=True):
            if found is None:
                raise SourceNotFound(f"{self._file(name).url} is no longer there", uri=self.uri, file=name)
            now = found.state
            digest.update(f"{name}\0{now.size_bytes}\0{now.etag}\0{now.last_modified}\0".encode("utf-8", "replace"))
        return f"http:{digest.hexdigest()}"

    def stop(self) -> None:
        """Cut the connections under every read; what is read later raises LoadCancelled too."""
        self._exchange.stop()

    def close(self) -> None:
        """Close every connection. No other thread may be reading."""
        self._exchange.close()

    # --- which files there are ----------------------------------------------

    def _list(self) -> None:
        name = self._url.path.rpartition("/")[2]
        if name:
            self._add([(name, self._url)])
            if not self._found:
                raise SourceNotFound(f"{self.uri} is not there", uri=self.uri)
            return
        self._add_names([*WEIGHT_NAMES, *SMALL_NAMES])
        if INDEX in self._found and ADAPTER_CONFIG not in self._found:
            named = self._names_of(self._known(), INDEX)
            if len(named) > SHARDS_MAX:
                raise InvalidSpec(f"{self.uri}{INDEX} names {len(named)} files, at most {SHARDS_MAX} are read")
            self._add_names(sorted(set(named) - self._found.keys()))
        if not self._found.keys() & set(WEIGHT_NAMES):
            raise SourceNotFound(f"{self.uri} has none of the files {', '.join(WEIGHT_NAMES)}", uri=self.uri)

    def _add_names(self, names: Iterable[str]) -> None:
        self._add([(name, parse_url(self.uri + quote(name, safe=""), PORTS)) for name in names])

    def _add(self, wanted: Sequence[tuple[str, Url]]) -> None:
        """Take note of those of the files that are there."""
        for (name, _), found in zip(wanted, self._look([url for _, url in wanted], HEAD_BYTES), strict=True):
            if found is not None:
                self._found[name] = found

    def _look(self, urls: Sequence[Url], head_bytes: int) -> list[_Found | None]:
        """Ask how files look, several at once; None for one that is not there."""
        if len(urls) == 1:
            return [self._look_at(urls[0], head_bytes)]
        with ThreadPoolExecutor(_ASKED_AT_ONCE, "look") as threads:
            return list(threads.map(lambda url: self._look_at(url, head_bytes), urls))

    def _look_at(self, url: Url, head_bytes: int) -> _Found | None:
        def look() -> _Found | None:
            with self._exchange.ask(url, 0, head_bytes - 1) as answer:
                if answer.status in ABSENT:
                    return None
                state = read_whole_state(answer.url, answer.status, answer.headers, head_bytes)
                return _Found(url, state, self._head(answer, min(head_bytes, state.size_bytes)))

        return retried(look, self._retry, self._exchange.stopped)

    def _head(self, answer: Answer, size: int) -> bytes:
        """Return the beginning of a file, or nothing if enough is kept already."""
        if self._heads_bytes + size > _HEADS_BYTES_MAX or size == 0:
            return b""
        head = bytearray(size)
        if _fill(answer, memoryview(head)) < size:
            raise _ends_early(answer.url)
        self._heads_bytes += size
        return bytes(head)

    def _known(self) -> _Known:
        return _Known(self, MappingProxyType({name: found.state.size_bytes for name, found in self._found.items()}))

    # --- reading ------------------------------------------------------------

    def _file(self, name: str) -> _Found:
        if name not in self._found:
            raise SourceNotFound(f"{self.uri} has no file {name!r}", uri=self.uri, file=name)
        return self._found[name]

    def _read_into(self, file: _Found, offset: int, view: memoryview) -> None:
        size, end = file.state.size_bytes, offset + len(view)
        check_stopped(self._exchange.stopped)
        if end > size:
            uri = str(file.url)
            raise SourceTruncated(
                f"{uri} has {size} bytes, {end} are needed", uri=uri, size_bytes=size, expected_bytes=end
            )
        if end <= len(file.head):
            view[:] = file.head[offset:end]
        elif len(view):
            self._fetch(file, offset, view)

    def _fetch(self, file: _Found, offset: int, view: memoryview) -> None:
        done = 0

        def fetch() -> None:
            nonlocal done
            first, last = offset + done, offset + len(view) - 1
            with self._exchange.ask(file.url, first, last, file.state.if_range) as answer:
                check_part(answer.url, answer.status, answer.headers, first, last, file.state)
                while done < len(view):
                    count = answer.read_into(view[done : done + _STEP_BYTES])
                    done += count
                    if count == 0:
                        raise _ends_early(answer.url)
                if answer.read(1):
                    raise SourceUnavailable(f"{answer.url}: more was sent than was asked for", uri=answer.url)

        retried(fetch, self._retry, self._exchange.stopped)


@dataclass(frozen=True, slots=True)
class _Known:
    """What of a source is known while its files are still asked for."""

    source: HttpSource
    sizes: Mapping[str, int]

    def files(self) -> Mapping[str, int]:
        return self.sizes

    def read(self, name: str, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self.source._read_into(self.source._file(name), offset, memoryview(buffer))  # noqa: SLF001 - a part of it
        return bytes(buffer)


def _fill(answer: Answer, view: memoryview) -> int:
    done = 0
    while done < len(view) and (count := answer.read_into(view[done:])):
        done += count
    return done


def _ends_early(url: str) -> TryAgain:
    return TryAgain(SourceUnavailable(f"{url} cannot be read: the answer ends early", uri=url))

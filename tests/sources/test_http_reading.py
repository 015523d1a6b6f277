"""Ranges of files on web servers, as a source gives them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import web_faults as faults
from kit.models import pattern
from kit.nginx import nginx, nginx_path
from kit.web import Web, serving
from kit.web_openers import QUICK, Openers, files_of, opener_for, settings
from warmshelf.errors import (
    InvalidSpec,
    LoadCancelled,
    SourceChangedDuringLoad,
    SourceNotFound,
    SourceTruncated,
    WarmshelfError,
)
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.http_answers import retry_after_seconds

DATA = pattern(7, 1_000_003)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        web.put("/m", {"model.safetensors": DATA, "config.json": b"{}", "empty.tensors": b""})
        yield web


def opened(web: Web, path: str = "/m/model.safetensors", **limits: object) -> OpenSource:
    return opener_for([web.url], [settings(web.url)], limits).open(web.url + path)


@contextlib.contextmanager
def some_server(files: Path) -> Iterator[str]:
    """nginx if it is installed; else the kit's server, with the same files."""
    binary = nginx_path()
    if binary is not None:
        with nginx(binary, files) as url:
            yield url
    else:
        with serving() as web:
            web.put("/m", {path.name: path.read_bytes() for path in (files / "m").iterdir()})
            yield web.url


def test_a_real_server_is_read_from_in_parallel(tmp_path: Path) -> None:
    """nginx with gzip on for everything, if it is installed."""
    (tmp_path / "m").mkdir()
    tmp_path.chmod(0o755)
    (tmp_path / "m" / "model.safetensors").write_bytes(DATA)
    (tmp_path / "m" / "config.json").write_bytes(b"{}" * 50_000)
    with some_server(tmp_path) as url, opener_for([url], [settings(url)]).open(f"{url}/m") as source:
        assert dict(source.files()) == {"model.safetensors": len(DATA), "config.json": 100_000}
        before = source.fingerprint(["config.json", "model.safetensors"])
        view = memoryview(bytearray(len(DATA)))
        step = len(DATA) // 4 + 1
        threads = [
            threading.Thread(target=source.read_into, args=("model.safetensors", at, view[at : at + step]))
            for at in range(0, len(DATA), step)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert view == DATA
        assert source.read("config.json", 0, 100_000) == b"{}" * 50_000
        assert source.fingerprint(["model.safetensors", "config.json"]) == before


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, 1), (65_535, 2), (65_536, 1), (1_000_002, 1), (0, 1_000_003)])
def test_every_range_is_what_was_asked_for(web: Web, offset: int, size: int) -> None:
    with opened(web) as source:
        assert source.read("model.safetensors", offset, size) == DATA[offset : offset + size]
    assert all(asked.headers["accept-encoding"] == "identity" for asked in web.asked)


def test_what_lies_behind_the_end_is_not_asked_for(web: Web) -> None:
    with opened(web) as source:
        source.files()
        with pytest.raises(SourceTruncated):
            source.read("model.safetensors", 1_000_000, 4)
    assert len(web.asked) == 1


def test_an_empty_file_has_no_bytes(web: Web) -> None:
    with opened(web, "/m/empty.tensors") as source:
        assert dict(source.files()) == {"empty.tensors": 0}
        assert source.read("empty.tensors", 0, 0) == b""


def test_connections_are_used_again_and_end_with_the_source(web: Web) -> None:
    with opened(web) as source:
        for at in range(100_000, 900_000, 100_000):
            source.read("model.safetensors", at, 100_000)
        assert web.connections == 1


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(web: Web) -> None:
    web.faults.append(faults.Break(after=1, times=1))
    with opened(web) as source:
        assert source.read("model.safetensors", 100_000, 100_000) == DATA[100_000:200_000]
    assert web.connections == 2


@pytest.mark.parametrize(
    ("etag", "dates"), [('"strong"', True), ('W/"weak"', True), ('"strong"', False), ('W/"weak"', False), ("", True)]
)
def test_a_change_is_noticed_by_whatever_the_server_has(web: Web, etag: str, dates: bool) -> None:
    web.etag, web.dates = lambda data: etag, dates
    with opened(web) as source:
        first = source.fingerprint(["model.safetensors"])
        assert source.read("model.safetensors", 100_000, 5) == DATA[100_000:100_005]
        assert source.fingerprint(["model.safetensors"]) == first
        web.files["/m/model.safetensors"] = DATA + b"!"
        with pytest.raises(SourceChangedDuringLoad):
            source.read("model.safetensors", 200_000, 5)
        assert source.fingerprint(["model.safetensors"]) != first
        del web.files["/m/model.safetensors"]
        with pytest.raises(SourceNotFound):
            source.read("model.safetensors", 200_000, 5)
        with pytest.raises(SourceNotFound):
            source.fingerprint(["model.safetensors"])


def test_only_strong_tags_are_sent_as_conditions(web: Web) -> None:
    for etag, wanted in (('"strong"', '"strong"'), ('W/"weak"', None), ("", None)):
        web.etag = lambda data, etag=etag: etag  # type: ignore[misc]
        web.asked.clear()
        with opened(web) as source:
            source.read("model.safetensors", 100_000, 5)
        assert web.asked[-1].headers.get("if-range") == wanted


def test_the_beginnings_of_files_are_read_once(web: Web) -> None:
    with opened(web) as source:
        assert source.read("model.safetensors", 0, 8) == DATA[:8]
        assert source.read("model.safetensors", 8, 60_000) == DATA[8:60_008]
    assert len(web.asked) == 1


def test_there_are_no_revisions_and_no_files_that_were_not_listed(web: Web) -> None:
    with opened(web, "/m/") as source, pytest.raises(SourceNotFound):
        source.read("../secret", 0, 1)


@pytest.mark.parametrize("fault", [faults.Stall(after=1), faults.Silent(after=1), faults.DripHead(after=1)])
def test_a_read_that_hangs_ends_when_the_source_is_stopped(web: Web, fault: faults.FaultOf) -> None:
    fault.seen = 0
    web.faults.append(fault)
    failures: list[WarmshelfError] = []
    with opened(web, source_stall_seconds=60, source_answer_seconds=60) as source:
        source.files()

        def read() -> None:
            try:
                source.read("model.safetensors", 100_000, 500_000)
            except WarmshelfError as error:
                failures.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while fault.seen < 2:
            time.sleep(0.01)
        source.stop()
        thread.join(10)
        assert not thread.is_alive()
        with pytest.raises(LoadCancelled):
            source.read("model.safetensors", 100_000, 5)
    assert [type(error) for error in failures] == [LoadCancelled]


def test_a_server_that_does_not_answer_is_left_after_its_time(web: Web) -> None:
    web.faults.append(faults.Silent())
    start = time.monotonic()
    with pytest.raises(WarmshelfError, match="too long"):
        files_of(opener_for([web.url], [settings(web.url)], QUICK), f"{web.url}/m/model.safetensors")
    assert time.monotonic() - start < 10


def test_what_a_server_asks_for_is_understood_in_both_forms() -> None:
    assert retry_after_seconds("7", 0) == 7
    assert retry_after_seconds("Wed, 21 Oct 2026 07:28:00 GMT", 1_792_567_670) == 10
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT", 1_792_567_670) == 0
    assert retry_after_seconds("soon", 0) == retry_after_seconds("-1", 0) == retry_after_seconds("", 0) == 0


@pytest.mark.parametrize("path", ["/m/model.safetensors", "/m"])
def test_a_revision_is_refused(web: Web, path: str) -> None:
    opener: Openers = opener_for([web.url], [settings(web.url)])
    with pytest.raises(InvalidSpec, match="no revisions"):
        opener.open(web.url + path, "main")

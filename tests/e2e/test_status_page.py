"""The status page of a real daemon, as a stranger would like it to be."""

from __future__ import annotations

import http.client
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kit.models import filled, safetensors_bytes, write_model
from kit.processes import Daemon, eventually
from kit.registered import register_offline
from kit.scrape import HTTP, Pages, pages_of
from warmshelf import WarmshelfError

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\u202egnp.exe"
TEXT_TAGS = {
    "header",
    "main",
    "section",
    "h1",
    "h2",
    "p",
    "a",
    "span",
    "small",
    "i",
    "bdi",
    "nav",
    "div",
    "dl",
    "dt",
    "dd",
}
ALLOWED_TAGS = TEXT_TAGS | {"html", "meta", "title", "style", "svg", "rect", "progress"}
ALLOWED_TAGS |= {"table", "thead", "tbody", "tr", "th", "td"}
ALLOWED_ATTRIBUTES = {"lang", "charset", "name", "content", "class", "href", "id", "role", "tabindex", "scope"}
ALLOWED_ATTRIBUTES |= {"aria-labelledby", "aria-label", "viewbox", "preserveaspectratio", "x", "width", "height"}
ALLOWED_ATTRIBUTES |= {"value", "max"}
MIB = 1 << 20
PAGE_BYTES_MAX, PAGE_SECONDS_MAX = 100_000, 0.2


class Seen(HTMLParser):
    """What a browser makes of a page: its tags with their attributes, and the text of each cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.links: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self.text = ""
        self._link = ""
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(attrs)
        self._link = dict(attrs).get("href") or "" if tag == "a" else ""
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._link = ""
        elif tag == "table":
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._link:
            self.links[data] = self._link
        if self._in_cell and self.tags[-1] != "title":
            self.rows[-1][-1] += data


def answer(pages: Pages, path: str, host: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(pages.address, timeout=10)
    connection.request("GET", path, headers={"Host": host or pages.address})
    return connection.getresponse()


def seen(pages: Pages, path: str = "/") -> Seen:
    return Seen(answer(pages, path).read().decode())


def fail_with(served: Daemon, artifact_id: str, tensor_name: str) -> None:
    """Register an artifact, and have its load fail with an error that names a tensor."""
    path = served.models / f"{artifact_id}.safetensors"
    path.write_bytes(safetensors_bytes(filled(1)))
    with served.connect() as shelf:
        shelf.register(artifact_id, path, digest="blake3:" + "0" * 64)
        path.write_bytes(safetensors_bytes({tensor_name: ("WRONG", (1,), b"1")}))
        with pytest.raises(WarmshelfError, match="WRONG"):
            shelf.acquire(artifact_id, timeout=20)


def test_the_page_shows_what_the_daemon_holds(served: Daemon, pages: Pages, models: Path) -> None:
    write_model(models / "a.safetensors", 1, 3 * MIB)
    with served.connect(holder=f"holder {HOSTILE}") as shelf:
        shelf.register("acme/a", models / "a.safetensors", keep=True)
        with shelf.acquire("acme/a", timeout=20) as lease:
            shown = seen(pages)
            status = json.loads(answer(pages, "/status.json").read())
            size = lease.artifact.size_bytes
    assert ["acme/a", "base", "ready", "1", "3.0 MiB", "1", shown.rows[-1][6], "yes"] in shown.rows
    assert ["acme/a", "ready", "0", ""] in shown.rows, "a base, and how many adapters it has"
    lease_row = next(row for row in shown.rows if len(row) == 4 and "holder <" in row[2])
    assert lease_row[:2] == ["acme/a", "1"]
    assert "</td><script>" in lease_row[2]
    assert "\u202e" not in shown.text, "what turns a line around is spelled out"
    assert next(row for row in shown.rows if "ago" in row[-1])[:2] == ["acme/a", "ok"]
    assert "acme/a (held): 3.0 MiB" in shown.text
    (row,) = status["rows"]
    assert (row["artifact_id"], row["leases"], row["size_bytes"]) == ("acme/a", 1, size)
    assert status["budget_bytes"] == 31 << 20
    assert status["arena_bytes"]["held"] == size
    assert [piece["size_bytes"] for piece in status["pieces"]] == [size]
    assert [name for name, _ in status["ended"][0]["phases"]][:3] == ["inspect", "reserve", "read"]
    assert status["artifacts"]["ready"] == status["leases"] == status["sessions"] == 1
    for secret in (str(models), str(served.arena), str(served.registry)):
        assert secret not in shown.text
        assert secret not in json.dumps(status)


def test_a_load_is_shown_while_it_goes_on_and_the_page_comes_again_sooner(daemon: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1, 72 * MIB)
    daemon.start(*HTTP, "--budget", "128MiB", failpoints="load.part=delay(700)", env={"WARMSHELF_READ_THREADS": "1"})
    pages = pages_of(daemon)
    with daemon.connect() as shelf, ThreadPoolExecutor(1) as pool:
        shelf.register("a", models / "a.safetensors")
        assert answer(pages, "/").headers["Refresh"] == "10"
        loading = pool.submit(lambda: list(shelf.load("a")))
        progress: list[str] = []

        def is_half_done() -> bool:
            rows = [row for row in seen(pages).rows if len(row) == 5 and row[0] == "a" and "of 72.0 MiB" in row[2]]
            progress.extend(row[2] for row in rows)
            return len(set(progress)) > 1

        eventually(is_half_done, "two looks see two amounts")
        assert answer(pages, "/").headers["Refresh"] == "2"
        assert answer(pages, "/?still=1").headers["Refresh"] is None
        assert seen(pages, "/?still=1&after=a").links["Go on"] == "/?after=a"
        loading.result()


def test_what_doctor_finds_is_shown_to_whoever_looks(served: Daemon, pages: Pages) -> None:
    """Every node has something: here at least that pages are small."""
    eventually(lambda: "Findings of doctor" in seen(pages).text, "doctor has been asked", 30)
    found = json.loads(answer(pages, "/status.json").read())["findings"]
    assert {one["level"] for one in found} <= {"problem", "warning", "note"}
    assert all(one["check"] and one["text"] for one in found)


def test_a_browser_may_do_nothing_with_the_page_but_show_it(pages: Pages) -> None:
    for path, kind in (("/", "text/html; charset=utf-8"), ("/status.json", "application/json")):
        got = answer(pages, path)
        text = got.read().decode()
        policy = got.headers["Content-Security-Policy"]
        assert got.headers["Content-Type"] == kind
        assert got.headers["X-Content-Type-Options"] == "nosniff"
        assert got.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script|style=|https?:|\son[a-z]+=|<form|<iframe", text)


def test_hostile_names_are_text_and_long_ones_are_cut(served: Daemon, pages: Pages) -> None:
    fail_with(served, "evil", HOSTILE)
    fail_with(served, "long", "n" * 500)
    shown = seen(pages)
    assert set(shown.tags) <= ALLOWED_TAGS
    assert set(shown.attributes) <= ALLOWED_ATTRIBUTES
    evil, long = (next(row for row in shown.rows if row[0] == name and len(row) == 3) for name in ("evil", "long"))
    assert evil[1] == "UNSUPPORTED_DTYPE"
    assert "</td><script>alert(1)</script>" in evil[2]
    assert (140 < len(long[2]) <= 160, long[2][-1]) == (True, "\u2026")


def test_only_names_that_are_ours_are_answered_to(served: Daemon, pages: Pages) -> None:
    port = pages.address.rpartition(":")[2]
    for host in (pages.address, f"localhost:{port}", "127.0.0.1", "[::1]:1", f"a.localhost:{port}"):
        assert answer(pages, "/", host).status == 200, host
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "localhost.evil:1"):
        for path in ("/", "/status.json"):
            got = answer(pages, path, host)
            assert (got.status, "evil" in got.read().decode()) == (421, False), host
        assert answer(pages, "/livez", host).status == 200


def test_ten_thousand_adapters_take_pages_of_bounded_length_and_no_time(daemon: Daemon) -> None:
    names = register_offline(daemon, adapter_count=10_000, base_count=30)
    daemon.start(*HTTP)
    pages = pages_of(daemon)
    took = []
    for _ in range(5):
        start = time.monotonic()
        text = answer(pages, "/").read()
        took.append(time.monotonic() - start)
        assert len(text) <= PAGE_BYTES_MAX
    assert min(took) <= PAGE_SECONDS_MAX, took
    first = Seen(text.decode())
    assert [row[:3] for row in first.rows if len(row) == 4][1] == ["meta/base-00", "registered", "334"]
    found: list[str] = []
    path = first.links["meta/base-00"].partition("#")[0]
    while path:
        part = seen(pages, path)
        found += [row[0] for row in part.rows if len(row) == 8 and row[0] != "ID"]
        path = part.links.get("next", "").partition("#")[0]
    assert found == sorted(name for name in names if name.startswith("acme/00/"))
    for query in ("?after=zz", "?after=" + "x" * 5000, "?after=%00", "?a&b&c&d&e&f", "?after=../..", "?base=%22%3E"):
        assert answer(pages, f"/{query}").status == 200


def test_the_page_says_so_when_the_event_loop_does_not_answer(daemon: Daemon, models: Path) -> None:
    """It comes from a thread of its own; a failpoint holds the loop up."""
    write_model(models / "a.safetensors", 1)
    daemon.start(*HTTP, failpoints="stream.chunk=delay(1500)")
    pages = pages_of(daemon)
    with daemon.connect(arena="/dev/null") as shelf, ThreadPoolExecutor(1) as pool:
        shelf.register("a", models / "a.safetensors")
        list(shelf.load("a"))
        reading = pool.submit(shelf.acquire, "a", timeout=20)
        got = answer(pages, "/")
        while got.status == 200:
            got = answer(pages, "/")
        assert (got.status, b"does not answer" in got.read()) == (503, True)
        reading.result(timeout=20).release()

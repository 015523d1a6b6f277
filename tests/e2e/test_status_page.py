"""The status page of a real daemon, as a browser would see it, and as a stranger would like it to be."""

from __future__ import annotations

import http.client
import json
import re
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kit.models import filled, safetensors_bytes, write_model
from kit.processes import Daemon
from kit.scrape import HTTP, Pages, pages_of
from warmshelf import WarmshelfError
from warmshelfd.statuspage import ROWS_MAX

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>&lt;"
ALLOWED_TAGS = {"html", "meta", "title", "style", "h1", "h2", "table", "tr", "td", "th", "p", "a"}


class Seen(HTMLParser):
    """What a browser makes of a page: its tags with their attributes, and the text of each cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and self.tags[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def answer(pages: Pages, path: str, host: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(pages.address, timeout=10)
    connection.request("GET", path, headers={"Host": host or pages.address})
    return connection.getresponse()


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
    write_model(models / "a.safetensors", 1)
    with served.connect(holder="SECRET-holder") as shelf:
        shelf.register("acme/a", models / "a.safetensors", keep=True)
        with shelf.acquire("acme/a", timeout=20) as lease:
            got = answer(pages, "/")
            text = got.read().decode()
            status = json.loads(answer(pages, "/status.json").read())
            size = str(lease.artifact.size_bytes)
    assert got.status == 200
    seen = Seen(text)
    assert ["acme/a", "base", "ready", "1", size, "1", seen.rows[-2][6], "yes"] in seen.rows
    assert set(seen.tags) <= ALLOWED_TAGS
    (row,) = status["rows"]
    assert (row["artifact_id"], row["leases"], row["size_bytes"]) == ("acme/a", 1, int(size))
    assert status["budget_bytes"] == 31 << 20
    assert status["arena_bytes"]["held"] == int(size)
    assert status["artifacts"]["ready"] == status["leases"] == status["sessions"] == 1
    for secret in ("SECRET", str(models), str(served.arena), str(served.registry)):
        assert secret not in text
        assert secret not in json.dumps(status)


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
        assert not re.search(r"script|style=|https?:|on[a-z]+=", text)


def test_hostile_names_are_text_and_long_ones_are_cut(served: Daemon, pages: Pages) -> None:
    fail_with(served, "evil", HOSTILE)
    fail_with(served, "long", "n" * 500)
    seen = Seen(answer(pages, "/").read().decode())
    assert set(seen.tags) <= ALLOWED_TAGS
    assert set(seen.attributes) <= {"lang", "charset", "href"}
    evil, long = (next(row for row in seen.rows if row[0] == name and len(row) == 3) for name in ("evil", "long"))
    assert evil[1] == "UNSUPPORTED_DTYPE"
    assert HOSTILE in evil[2]
    assert len(long[2]) == 500


def test_only_names_that_are_ours_are_answered_to(served: Daemon, pages: Pages) -> None:
    port = pages.address.rpartition(":")[2]
    for host in (pages.address, f"localhost:{port}", "127.0.0.1", "[::1]:1", f"a.localhost:{port}"):
        assert answer(pages, "/", host).status == 200, host
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "localhost.evil:1"):
        for path in ("/", "/status.json"):
            got = answer(pages, path, host)
            assert (got.status, "evil" in got.read().decode()) == (421, False), host
        assert answer(pages, "/livez", host).status == 200


def test_many_artifacts_take_many_pages_of_bounded_length(served: Daemon, pages: Pages, models: Path) -> None:
    (models / "a.safetensors").write_bytes(safetensors_bytes(filled(1)))
    names = {f"{number:03}+a/b@c" for number in range(ROWS_MAX + 5)}
    with served.connect() as shelf:
        for name in names:
            shelf.register(name, models / "a.safetensors")
    found: set[str] = set()
    path, count = "/", 0
    while path:
        seen = Seen(answer(pages, path).read().decode())
        rows = {row[0] for row in seen.rows if len(row) == 8} - {"ID"}
        assert len(rows) <= ROWS_MAX
        found |= rows
        path, count = seen.attributes.get("href") or "", count + 1
    assert (found, count) == (names, 2)
    for query in ("?after=zz", "?after=" + "x" * 5000, "?after=%00", "?a&b&c&d&e&f", "?after=../.."):
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

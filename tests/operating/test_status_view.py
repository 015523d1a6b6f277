"""How the status page is drawn: never longer than it may be, whatever it has to show, and as a browser lays it out."""

from __future__ import annotations

import html
import http.server
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kit import browser
from warmshelfd import statusrows as rows
from warmshelfd.statusview import as_html, span

PAGE_BYTES_MAX = 100_000
LONGEST = "z" * 255
HOSTILE = '"' * 1000  # six bytes each, once escaped
HUGE = (1 << 63) - 1
MARKUP = "<img src=x onerror=alert(1)><script>document.title='taken'</script></td></svg>\u202e\u2066"


def full(artifact_id: str, words: str, adapters: int = HUGE) -> rows.Status:
    """Return a status with as much of everything as there may be."""
    message, holder = rows.cut(words), rows.cut(words, rows.HOLDER_BYTES_MAX)
    segments = [rows.PieceRow(artifact_id, "adapter", HUGE // 99 - n, bool(n % 2)) for n in range(99)]
    states = dict.fromkeys(("registered", "loading", "ready", "evicting", "failed"), adapters)
    ids = [f"{artifact_id[:-3]}{number:03}" for number in range(rows.ROWS_MAX)]
    phases = tuple((name, 1234.5) for name in ("inspect", "reserve", "read", "verify", "seal", "pin"))
    return rows.Status(
        version="0.1.0",
        is_ready=True,
        is_draining=False,
        uptime_seconds=HUGE,
        pinning="hugetlb",
        page_size_bytes=2 << 20,
        budget_bytes=HUGE,
        arena_bytes=dict.fromkeys(("held", "idle", "reserved", "unnamed", "free"), HUGE // 5),
        unpinned_bytes=HUGE,
        pieces=rows.pieces_of(segments),
        artifacts=states,
        sessions=HUGE,
        leases=HUGE,
        lease_rows=(rows.LeaseRow(artifact_id, HUGE, holder, HUGE),) * rows.LEASES_MAX,
        loads_running=HUGE,
        loads_waiting=HUGE,
        callers_waiting=HUGE,
        load_rows=(rows.LoadRow(artifact_id, "inspect", HUGE, HUGE, 1e9, HUGE, message),) * rows.LOADS_MAX,
        ended=(rows.EndedRow(artifact_id, "cancelled", "SOURCE_CHANGED_DURING_LOAD", 1e9, phases),) * 16,
        groups=(rows.GroupRow(artifact_id, "registered", states),) * rows.GROUPS_MAX,
        failed=(rows.FailedRow(artifact_id, "SOURCE_CHANGED_DURING_LOAD", message),) * rows.FAILED_MAX,
        findings=(rows.FindingRow("kernel_features", "warning", message, message),) * rows.FINDINGS_MAX,
        tenants=(rows.TenantRow("t" * 63, HUGE, HUGE, HUGE),) * rows.TENANTS_MAX,
        tenant="t" * 63,
        base_id=artifact_id,
        rows=tuple(
            rows.Row(one, "adapter", "registered", HUGE, HUGE, HUGE, pinned=True, kept=True)
            for one in ids[: rows.rows_that_fit(ids)]
        ),
        next_after=artifact_id,
    )


def test_the_page_is_never_longer_than_it_may_be() -> None:
    wanted = rows.Wanted(LONGEST, LONGEST, is_still=True, tenant="t" * 63)
    for artifact_id, words in ((LONGEST, HOSTILE), ("z" * 30, HOSTILE), (LONGEST, "\u202e" * 999)):
        assert len(as_html(full(artifact_id, words), wanted).body) <= PAGE_BYTES_MAX


def test_findings_are_shown_if_there_are_any() -> None:
    shown = as_html(full("acme/a", "arena on ext4"), rows.Wanted()).body.decode()
    assert shown.count("arena on ext4") >= rows.FINDINGS_MAX * 2
    assert "Findings of doctor" in shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (3.14, "3.1 s"),
        (59, "59 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (9e5, "10 days"),
    ],
)
def test_times_are_written_for_people(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_a_query_says_what_is_wanted_or_nothing() -> None:
    assert rows.wanted_by("after=a%2Fb&base=acme/c&still=1") == rows.Wanted("a/b", "acme/c", is_still=True)
    for query in ("", "after=..", "base=%00", "a&b&c&d&e&f&g", "after=" + "x" * 300, "still"):
        assert rows.wanted_by(query) == rows.Wanted()


# --- in a browser ---------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A directory of the test's own, served on a port that the kernel chooses; gives its URL."""
    handler = partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        if self.path.startswith("/page"):
            for name, value in as_html(full("acme/a", MARKUP, 3), rows.Wanted()).headers.items():
                if name != "Refresh":
                    self.send_header(name, value)
        super().end_headers()


def first_pixel(picture: Path) -> tuple[int, ...]:
    """Return the top left pixel of a PNG, which is stored as it is whatever the filter of its line."""
    data = picture.read_bytes()
    at, packed = 8, b""
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        packed += data[at + 8 : at + 8 + size] if data[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + size
    return tuple(zlib.decompressobj().decompress(packed, 4)[1:])


def test_a_browser_shows_hostile_names_as_text_obeys_the_policy_and_has_light_and_dark(
    served: str, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_bytes(as_html(full("acme/a", MARKUP, 3), rows.Wanted()).body)
    shown, said = browser.document(f"{served}/page.html")
    assert said == [], "nothing is refused: the page's own style is allowed, and it asks for nothing else"
    assert re.findall(r"<title>(warmshelf.*?)</title>", shown) == ["warmshelf: ready"]
    assert not re.search(r"<script|<img|onerror=(?!alert\(1\)&gt;)", shown)
    assert html.unescape(shown).count("<img src=x onerror=alert(1)>") > 20
    pixels = {}
    for is_dark in (False, True):
        assert browser.screenshot(f"{served}/page.html", tmp_path / "page.png", is_dark=is_dark) == []
        pixels[is_dark] = first_pixel(tmp_path / "page.png")
    assert (min(pixels[False]), max(pixels[True]) < 40) == (255, True), pixels


MEASURE = """<script>
const within = (one) => one.closest(".scroll, svg > *") !== null;
const wide = [...document.querySelectorAll("body *")].filter((one) => !within(one) && one.getBoundingClientRect().right
  > document.documentElement.clientWidth + 1);
const stops = [...document.querySelectorAll("a, [tabindex]")].map((one) => one.className || one.tagName);
document.title = [document.documentElement.clientWidth, document.documentElement.scrollWidth,
  wide.slice(0, 3).map((one) => one.tagName + one.className).join("+") || "nothing", stops.slice(0, 2).join("+"),
  document.querySelectorAll(".scroll:not([tabindex='0'])").length].join(" ");
</script>"""


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_whatever_its_width_nothing_but_tables_scrolls_sideways_and_every_table_can_be_reached_by_key(
    served: str, tmp_path: Path, width: int
) -> None:
    """A frame of that width shows a copy of the page that measures itself; the real one may not be framed, nor run."""
    page = as_html(full("acme/" + "long-" * 40, MARKUP, 3), rows.Wanted()).body.decode()
    (tmp_path / "copy.html").write_text(page + MEASURE)
    (tmp_path / "outer.html").write_text(
        f'<iframe id=inner src=copy.html style="border:0;width:{width}px;height:900px"></iframe><p id=said></p><script>'
        'inner.onload = () => { said.textContent = "measured: " + inner.contentDocument.title + "."; };</script>'
    )
    shown, _ = browser.document(f"{served}/outer.html")
    measured = re.search(r"measured: (.*?)\.<", shown)
    assert measured is not None, shown
    inner, scrolled, wide, stops, unreachable = measured[1].split(" ")
    assert (int(scrolled), wide) == (int(inner), "nothing")
    assert width - 20 <= int(inner) <= width
    assert (stops, unreachable) == ("skip+A", "0")

"""T19, T20, S11, S12, G12: what comes of every URL of the corpus, and that none connects to what it may not."""

from __future__ import annotations

import contextlib
import re
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from kit.urls import Case, cases
from kit.web_openers import QUICK
from warmshelf.errors import (
    InvalidConfig,
    InvalidSpec,
    SourceNotAllowed,
    SourceNotFound,
    SourceUnavailable,
)
from warmshelf.types import Source
from warmshelfd.inspecting import Sources
from warmshelfd.parts import sources_of
from warmshelfd.settings import Settings

ALLOWED = ("http://allowed.example/m", "https://allowed.example/m", "s3://allowed/m", "hf://allowed/model")
URLS_MIN = 200
PUBLIC = "8.8.8.8"

OUTSIDE = {"prefix", "address", "name"}
NEVER = {"spelling", "scheme"}


class Tripwire:
    """Listens on every address of the loopback, on one port."""

    def __init__(self, *listeners: socket.socket) -> None:
        self.port: int = listeners[0].getsockname()[1]
        self._listeners = listeners

    def touched(self) -> int:
        """Return how many connections came since the last question."""
        count = 0
        for listener in self._listeners:
            listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
                    count += 1
        return count


@pytest.fixture(scope="module")
def wire() -> Iterator[Tripwire]:
    with socket.create_server(("", 0)) as four:
        if not socket.has_dualstack_ipv6():
            yield Tripwire(four)
            return
        with socket.create_server(("::", four.getsockname()[1]), family=socket.AF_INET6) as six:
            yield Tripwire(four, six)


def policy(*allowed: str, **more: object) -> Sources:
    """Return what the daemon asks about sources, with these prefixes allowed."""
    told = {"listen": ["unix:///run/x.sock"], "arena": "/run/x", "registry": "sqlite:////run/x.sqlite"}
    return sources_of(Settings.model_validate({**told, **QUICK, **more, "allow_source": allowed}))


def verdict(sources: Sources, url: str) -> str:
    """Return what becomes of a registration of the URL, as far as no server is needed."""
    try:
        sources.open(Source(sources.canonical(Source(url)).uri)).close()
    except InvalidSpec:
        return "never"
    except SourceNotAllowed:
        return "outside"
    return "allowed"


def expected(case: Case) -> str:
    return "never" if case.verdict in NEVER else "outside" if case.verdict in OUTSIDE else case.verdict


def test_the_tripwire_is_one(wire: Tripwire) -> None:
    place = f"http://127.0.0.1:{wire.port}/m"
    sources = policy(place, source=[{"prefix": place, "allow_private": True}])
    with sources.open(Source(f"{place}/w.tensors")) as source, pytest.raises(SourceUnavailable):
        source.files()
    assert wire.touched() > 0


def test_every_url_has_its_verdict_and_none_is_connected_to(wire: Tripwire) -> None:
    corpus = cases(wire.port)
    counts = Counter(case.verdict for case in corpus)
    print(f"{len(corpus)} URLs: {dict(counts)}")
    assert counts.keys() == OUTSIDE | NEVER | {"allowed"}
    assert len({case.url for case in corpus}) - counts["allowed"] >= URLS_MIN
    sources = policy(*ALLOWED)
    assert [case for case in corpus if verdict(sources, case.url) != expected(case)] == []
    nothing = policy()
    assert [case for case in corpus if verdict(nothing, case.url) == "allowed"] == []
    assert wire.touched() == 0


def test_no_name_is_connected_to_although_its_server_is_allowed(wire: Tripwire) -> None:
    """The text is allowed, as by an operator's mistake. Where the name leads is judged then, if it leads anywhere."""
    tried = 0
    for case in cases(wire.port):
        host = case.url.partition("://")[2].partition(":")[0]
        if case.verdict != "name" or host.lower() == "localhost":  # which a prefix may mean
            continue
        opened = policy(f"http://{host}:{wire.port}").open(Source(case.url))
        with opened as source, pytest.raises((SourceNotAllowed, SourceUnavailable)) as failed:
            source.files()
        assert "127.0.0.1" not in str(failed.value).replace(case.url, ""), case
        tried += 1
    assert tried >= 10
    assert wire.touched() == 0


def test_no_address_is_connected_to_although_a_name_that_leads_there_is_allowed(
    wire: Tripwire, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo
    tried = 0
    for case in cases(wire.port):
        place = re.fullmatch(r"http://(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]+)?/.*", case.url)
        if case.verdict == "address" and place:
            address = place[1] or place[2]
            monkeypatch.setattr(
                socket, "getaddrinfo", lambda _, port, address=address, **more: look_up(address, port, **more)
            )
            named = f"http://named.example:{wire.port}"
            with policy(named).open(Source(f"{named}/w.tensors")) as source, pytest.raises(SourceNotAllowed):
                source.files()
            tried += 1
    assert tried >= 70
    assert wire.touched() == 0


def test_what_no_reader_agrees_on_cannot_be_allowed_either(wire: Tripwire) -> None:
    for case in cases(wire.port):
        if case.verdict == "spelling" and case.url.startswith("http"):
            with pytest.raises((InvalidConfig, ValueError)):
                policy(case.url)


class Rebound:
    """A name that leads to a public address the first time it is looked up, and inside from then on."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lookups = 0
        self.connects: list[str] = []

    def look_up(self, host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        self.lookups += 1
        address = PUBLIC if self.lookups == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(self, address: tuple[str, int]) -> None:
        self.connects.append(address[0])
        raise ConnectionResetError


def test_a_name_that_leads_elsewhere_at_the_second_look_is_not_followed(
    wire: Tripwire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: one lookup for each connection, and what it led to is judged and connected to."""
    rebound = Rebound(wire.port)

    class Watched(socket.socket):
        def connect(self, address: tuple[str, int]) -> None:  # type: ignore[override]
            rebound.connect(address)

    monkeypatch.setattr(socket, "getaddrinfo", rebound.look_up)
    monkeypatch.setattr(socket, "socket", Watched)
    place = f"http://rebound.example:{wire.port}/m"
    with (
        policy(place).open(Source(f"{place}/w.tensors")) as source,
        pytest.raises((SourceNotAllowed, SourceUnavailable, SourceNotFound)),
    ):
        source.files()
    assert rebound.connects == [PUBLIC]
    assert rebound.lookups > 1
    monkeypatch.undo()
    assert wire.touched() == 0

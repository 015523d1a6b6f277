"""What may be connected to: addresses, and redirects that lead inside, past listeners that none may reach.

The URLs themselves are tried in ``tests/threats/test_urls.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator

import pytest

from kit import web_faults as faults
from kit.urls import cases
from kit.web import serving
from kit.web_openers import QUICK, files_of, opener_for, settings
from warmshelf.errors import SourceNotAllowed, SourceUnavailable
from warmshelfd.sources.addresses import check_peer, connect, is_public

INSIDE = [
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"]
PUBLIC += ["::ffff:8.8.8.8", "64:ff9b::808:808"]


Trip = tuple[int, list[socket.socket]]


@pytest.fixture(scope="module")
def trip() -> Iterator[Trip]:
    """Listeners on every address of the loopback, on one port; they must never be reached."""
    with socket.create_server(("", 0)) as four:
        port = four.getsockname()[1]
        listeners = [four]
        if socket.has_dualstack_ipv6():
            six = socket.create_server(("::", port), family=socket.AF_INET6)
            listeners.append(six)
        for one in listeners:
            one.setblocking(False)
        yield port, listeners
        for one in listeners[1:]:
            one.close()


def assert_untouched(trip: Trip) -> None:
    for listener in trip[1]:
        with pytest.raises(BlockingIOError):
            listener.accept()


def lead(monkeypatch: pytest.MonkeyPatch, name: str, address: str) -> None:
    """Have a name lead to an address; all others are looked up as ever."""
    look_up = socket.getaddrinfo

    def answer(host: str, port: int, **options: int) -> object:
        return look_up(address if host == name else host, port, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def corpus(port: int) -> list[str]:
    return [case.url for case in cases(port) if case.verdict != "allowed"]


def test_the_listeners_would_notice(trip: Trip) -> None:
    for host in ("127.0.0.1", "localhost"):
        place = f"http://{host}:{trip[0]}"
        with pytest.raises(SourceUnavailable):
            files_of(opener_for([place], [settings(place)], QUICK), f"{place}/w.tensors")
        count = 0
        for listener in trip[1]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
                    count += 1
        assert count > 0


def test_which_addresses_are_public() -> None:
    assert [address for address in INSIDE if is_public(address)] == []
    assert [address for address in PUBLIC if not is_public(address)] == []


def test_no_address_inside_is_connected_to_although_the_name_that_leads_there_is_allowed(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T19: the text is allowed, the address is not."""
    for scheme, address in itertools.product(("http", "https"), INSIDE):
        lead(monkeypatch, "named.example", address)
        place = f"{scheme}://named.example:{trip[0]}"
        with pytest.raises(SourceNotAllowed, match="no public address"):
            files_of(opener_for([place], (), QUICK), f"{place}/m/w.tensors")
    assert_untouched(trip)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_address_inside_is_connected_to_if_the_allowed_prefix_names_it(host: str) -> None:
    with serving() as web:
        web.put("/m", {"w.tensors": b"x"})
        place = web.url.replace("127.0.0.1", host)
        assert files_of(opener_for([f"{place}/m"]), f"{place}/m/w.tensors") == {"w.tensors": 1}


def test_no_redirect_leads_inside(trip: Trip) -> None:
    """S11, T19: from a server that may be read to every URL of the corpus."""
    with serving() as web:
        web.put("/m", {"w.tensors": b"x"})
        for location in corpus(trip[0]):
            if not location or not location.isascii() or not location.isprintable():
                continue
            web.faults[:] = [faults.Redirect("*", to=lambda path, location=location: location)]  # type: ignore[misc]
            opener = opener_for([web.url], [settings(web.url)], QUICK)
            with pytest.raises((SourceNotAllowed, SourceUnavailable)):
                files_of(opener, f"{web.url}/m/w.tensors")
    assert_untouched(trip)


def test_an_allowed_prefix_that_redirects_inside_another_is_judged_by_that_ones_settings(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(monkeypatch, "inside.example", "127.0.0.1")
    with serving() as web:
        inside = f"http://inside.example:{trip[0]}"
        web.faults.append(faults.Redirect("*", to=lambda path: inside + path))
        opener = opener_for([web.url, inside], [settings(web.url)], QUICK)
        with (
            opener.open(f"{web.url}/m/w.tensors") as source,
            pytest.raises(SourceNotAllowed, match="no public address"),
        ):
            source.files()
    assert_untouched(trip)


def test_a_name_that_leads_inside_is_refused_before_it_is_connected_to(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: a name is looked up once, and what it led to then is what is connected to."""
    lookups = []

    def look_up(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        lookups.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (inside, port)) for inside in ("127.0.0.1", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    url = f"http://rebound.example:{trip[0]}"
    with pytest.raises(SourceNotAllowed, match="no public address") as refused:
        files_of(opener_for([url], (), QUICK), f"{url}/w.tensors")
    assert lookups == ["rebound.example"]
    assert "127.0.0.1" not in str(refused.value)
    assert_untouched(trip)


def test_what_a_socket_turns_out_to_be_connected_to_is_judged_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        made = connect("127.0.0.1", port, allow_private=True, timeout_seconds=2, note=lambda sock: None)
        with made, pytest.raises(SourceNotAllowed):
            check_peer(made, "public.example", allow_private=False)


def test_proxies_of_the_environment_are_not_used(trip: Trip, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{trip[0]}")
    with serving() as web:
        web.put("/m", {"w.tensors": b"x"})
        with opener_for([web.url], [settings(web.url)]).open(f"{web.url}/m/w.tensors") as source:
            assert source.files() == {"w.tensors": 1}
    assert_untouched(trip)

"""The HTTP server of the operators' pages: what it answers, and what it does not let strangers do."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from kit.processes import eventually
from kit.scrape import Pages
from warmshelf.errors import DaemonInUse, InvalidConfig
from warmshelfd import http
from warmshelfd.http import CONNECTIONS_MAX, Answer, Asked, Heartbeat, HttpServer, yes_or_no
from warmshelfd.options import Listen, parse_listen

LOOPBACK = Listen("tcp", host="127.0.0.1", port=0)


class BrokenPageError(Exception):
    pass


def broken(_: Asked) -> Answer:
    raise BrokenPageError("SECRET1 in a traceback")


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Holds back the page /slow until it is set."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def server(held: threading.Event) -> Iterator[HttpServer]:
    def slow(_: Asked) -> Answer:
        held.wait(10)
        return yes_or_no(True)

    it = HttpServer(
        LOOPBACK,
        {
            "/yes": lambda _: yes_or_no(True),
            "/no": lambda _: yes_or_no(False),
            "/echo": lambda asked: Answer(HTTPStatus.OK, asked.accept.encode(), "text/x"),
            "/broken": broken,
            "/slow": slow,
        },
    )
    it.start()
    yield it
    held.set()
    it.stop()


@pytest.fixture
def pages(server: HttpServer) -> Pages:
    return Pages(server.address)


def connect(server: HttpServer) -> socket.socket:
    listen = parse_listen(server.address)
    return socket.create_connection((listen.host, listen.port), timeout=10)


def raw(server: HttpServer, request: bytes) -> bytes:
    """Return all that the server sends for some bytes."""
    with connect(server) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


# --- answers ------------------------------------------------------------------


def test_a_probe_is_told_200_or_503_in_a_word(pages: Pages) -> None:
    assert pages.get("/yes") == (200, "OK\n")
    assert pages.get("/no") == (503, "Service Unavailable\n")
    assert pages.get("/yes?verbose") == (200, "OK\n")


def test_a_page_is_told_what_the_client_accepts(pages: Pages) -> None:
    assert pages.get("/echo", accept="a/b; q=1") == (200, "a/b; q=1")


def test_head_gets_the_same_without_the_text(server: HttpServer, pages: Pages) -> None:
    assert pages.get("/yes", "HEAD") == (200, "")
    assert b"Content-Length: 3" in raw(server, b"HEAD /yes HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "EVIL"])
def test_no_other_method_is_taken(server: HttpServer, method: str) -> None:
    answer = raw(server, f"{method} /yes HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: GET, HEAD" in answer
    assert b"EVIL" not in answer


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../yes", "/%79es", "/yes/../broken", "http://x/yes"])
def test_what_is_no_page_is_not_found(pages: Pages, path: str) -> None:
    assert pages.get(path) == (404, "Not Found\n")


@pytest.mark.parametrize(
    "request_",
    [
        b"EVIL\r\n\r\n",
        b"GET /yes EVIL/9\r\n\r\n",
        b"GET /yes HTTP/9.9\r\n\r\n",
        b"GET /" + b"E" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /yes HTTP/1.1\r\n" + b"Evil: 1\r\n" * 200 + b"\r\n",
        b"GET /yes HTTP/1.1\r\nEvil: " + b"E" * 70_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["word", "version", "far version", "long line", "many headers", "long header", "tls", "http2"],
)
def test_nonsense_is_refused_without_repeating_it(server: HttpServer, pages: Pages, request_: bytes) -> None:
    answer = raw(server, request_)
    assert b"VIL" not in answer.upper()
    assert b"EEE" not in answer
    assert not answer.startswith(b"HTTP/1.1 2")
    assert pages.status("/yes") == 200


def test_a_bug_in_a_page_is_logged_and_not_shown(pages: Pages, caplog: pytest.LogCaptureFixture) -> None:
    status, text = pages.get("/broken")
    assert (status, text) == (500, "Internal Server Error\n")
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR] == [True]


def test_probes_leave_no_line_in_the_log(pages: Pages, server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    pages.get("/yes")
    pages.get("/nowhere")
    connect(server).close()
    raw(server, b"EVIL\r\n\r\n")
    assert caplog.records == []


# --- bounds -------------------------------------------------------------------


def test_silent_connections_hold_up_nobody_and_the_oldest_makes_way(server: HttpServer, pages: Pages) -> None:
    silent = [connect(server) for _ in range(3 * CONNECTIONS_MAX)]
    assert pages.status("/yes") == 200
    silent[0].settimeout(10)
    assert silent[0].recv(1) == b""
    assert threading.active_count() < 2 * CONNECTIONS_MAX
    for connection in silent:
        connection.close()


def test_who_sends_a_byte_now_and_then_is_cut_off(
    server: HttpServer, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.2)
    with connect(server) as drip:

        def is_cut() -> bool:
            try:
                drip.sendall(b"G")
            except OSError:
                return True
            return False

        eventually(is_cut, "the connection has been cut")
    assert pages.status("/yes") == 200


def test_a_slow_page_holds_up_no_other(server: HttpServer, pages: Pages, held: threading.Event) -> None:
    with connect(server) as waiting:
        waiting.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert pages.status("/yes") == 200
        held.set()
        assert waiting.recv(100).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_before_its_answer_is_no_bug(
    server: HttpServer, pages: Pages, held: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    gone = connect(server)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close resets
    gone.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    gone.close()
    held.set()
    assert pages.status("/slow") == 200
    eventually(lambda: not server._open, "every connection has ended")
    assert caplog.records == []


# --- the address --------------------------------------------------------------


def test_a_port_in_use_is_refused_as_such(server: HttpServer) -> None:
    with pytest.raises(DaemonInUse, match=server.address):
        HttpServer(parse_listen(server.address), {})


@pytest.mark.parametrize("text", ["192.0.2.1:9000", "198.51.100.7:80"])
def test_what_is_no_address_here_is_wrong_usage(text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        HttpServer(parse_listen(text), {})


def test_an_address_is_free_once_its_server_has_stopped() -> None:
    for port in (0, 0):
        first = HttpServer(Listen("tcp", host="localhost", port=port), {})
        first.start()
        first.stop()
        again = HttpServer(parse_listen(first.address), {})
        again.server_close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_pages_can_be_served_over_ipv6() -> None:
    try:
        it = HttpServer(parse_listen("[::1]:0"), {"/yes": lambda _: yes_or_no(True)})
    except InvalidConfig:
        pytest.skip("this host has no ::1")
    it.start()
    try:
        assert it.address.startswith("[::1]:")
        assert Pages(it.address).status("/yes") == 200
    finally:
        it.stop()


# --- the heartbeat ------------------------------------------------------------


def test_a_loop_counts_as_stuck_when_it_has_been_silent_for_too_long_and_no_sooner() -> None:
    now = [100.0]
    heartbeat = Heartbeat(10, clock=lambda: now[0])
    now[0] = 110
    assert heartbeat.alive
    now[0] = 110.1
    assert not heartbeat.alive
    assert heartbeat.age_seconds == pytest.approx(10.1)
    heartbeat.beat()
    assert heartbeat.alive

"""A web server of files for tests, which does as it is told and notes what it was asked.

It serves ranges, ETags and dates as a good server does, written without a line of ours.
Faults are classes of ``kit.web_faults`` that answer in its place.
"""

from __future__ import annotations

import email.utils
import hashlib
import http.server
import re
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

DATE = email.utils.formatdate(1_700_000_000, usegmt=True)


@dataclass
class Asked:
    """One request."""

    path: str
    headers: dict[str, str]

    @property
    def name(self) -> str:
        return self.path.partition("?")[0].rpartition("/")[2]

    @property
    def range(self) -> tuple[int, int] | None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2])) if match else None


Fault = Callable[["Handler", Asked], bool]
"""Answers a request in the server's place and returns True, or leaves it to the server."""


@dataclass
class Web:
    """The files of a server by path, what it was asked, and what is wrong with it."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    etag: Callable[[bytes], str] = lambda data: f'"{hashlib.sha1(data).hexdigest()}"'
    dates: bool = True
    connections: int = 0
    url: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)

    def put(self, directory: str, files: dict[str, bytes]) -> str:
        """Serve files below a directory and return its URL."""
        for name, data in files.items():
            self.files[f"{directory}/{name}"] = data
        return self.url + directory + "/"

    def requests_for(self, name: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.name == name]


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    web: Web

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Write nothing."""

    def do_GET(self) -> None:
        asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()})
        self.web.asked.append(asked)
        for fault in list(self.web.faults):
            if fault(self, asked):
                return
        self.serve(asked)

    def serve(self, asked: Asked) -> None:
        """Answer as a good server does."""
        data = self.web.files.get(urllib.parse.unquote(asked.path.partition("?")[0]))
        if data is None:
            self.answer(404, b"no such file")
            return
        etag, wanted = self.web.etag(data), asked.range
        if wanted is None or asked.headers.get("if-range", etag) != etag:
            self.answer(200, data, self.validators(data))
        elif wanted[0] >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}", **self.validators(data)})
        else:
            self.answer_range(data, wanted[0], min(wanted[1], len(data) - 1))

    def answer_range(self, data: bytes, first: int, last: int, headers: dict[str, str] | None = None) -> None:
        said = {"Content-Range": f"bytes {first}-{last}/{len(data)}", **self.validators(data), **(headers or {})}
        self.answer(206, data[first : last + 1], said)

    def validators(self, data: bytes) -> dict[str, str]:
        found = {"ETag": self.web.etag(data)} if self.web.etag(data) else {}
        return {**found, "Last-Modified": DATE} if self.web.dates else found

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.head(status, {"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    web: Web
    tls: ssl.SSLContext | None = None

    def process_request_thread(self, request: object, client_address: object) -> None:
        self.web.connections += 1
        try:
            if self.tls is not None:
                request = self.tls.wrap_socket(request, server_side=True)  # type: ignore[arg-type]
        except OSError:  # the client refused our certificate
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request_thread(request, client_address)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what tests are about."""


@contextmanager
def serving(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Web]:
    """Serve on a port that the kernel chooses."""
    web = Web()
    server = _Server(("127.0.0.1", 0), type("Handler", (Handler,), {"web": web}))
    server.web, server.tls = web, tls
    web.url = f"{'http' if tls is None else 'https'}://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield web
    finally:
        web.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()

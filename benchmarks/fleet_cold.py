"""Four nodes that start with one base that nobody has: what they read of its source, and how long they take.

The source is a web server that counts what it sends, and sends no more than 200 Mbit/s to all together.
"""

from __future__ import annotations

import http.server
import json
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import warmshelf

SOURCE_BYTES_PER_SECOND = 25_000_000
NODES_COUNT = 4
READS_MAX = 1.1
_PIECE_BYTES = 64 << 10

Node = Callable[..., AbstractContextManager[warmshelf.Shelf]]
"""Runs a daemon below a directory, with these further options."""
Say = Callable[..., None]


def measure(folder: Path, node: Node, say: Say, size_bytes: int) -> None:
    """Measure with nodes that take from each other, and with nodes that know no other."""
    with _source(_safetensors(size_bytes)) as source:
        (folder / "sources.toml").write_text(f'[[source]]\nprefix = "{source.url}"\nallow_private = true\n')
        for name, options in (
            ("one reads, the others take it from there", ("--neighbours", "127.0.0.0/8", "--advertise", "127.0.0.1")),
            ("each from the source", ()),
        ):
            reads, seconds = _cold(folder, node, source, f"acme/{len(options)}", options)
            is_together = bool(options)
            what = f"{NODES_COUNT} nodes, {size_bytes / 1e6:.0f} MB: {name}"
            say(f"{what}: reads of the source", reads, "reads", READS_MAX if is_together else None)
            say(f"{what}: until all have it", seconds, "s")


def _cold(folder: Path, node: Node, source: _Source, artifact_id: str, options: Sequence[str]) -> tuple[float, float]:
    common = ("--config", f"{folder}/sources.toml", "--allow-source", source.url, "--listen", "127.0.0.1:0", *options)
    with ExitStack() as stack, ThreadPoolExecutor(NODES_COUNT) as threads:
        roots = [folder / f"cold-{len(options)}-{number}" for number in range(NODES_COUNT)]
        shelves = [stack.enter_context(node(root, *common, "--node-name", root.name)) for root in roots]
        shelves[0].register(artifact_id, source.url + "model.safetensors")
        for shelf in shelves:
            while all(one.artifact_id != artifact_id for one in shelf.list()):
                time.sleep(0.01)
        before, began = source.sent_bytes, time.perf_counter()
        list(threads.map(lambda shelf: list(shelf.load(artifact_id)), shelves))
        return (source.sent_bytes - before) / len(source.data), time.perf_counter() - began


class _Source:
    """A file on a web server; all requests share one rate."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.url = ""
        self.sent_bytes = 0
        self._lock = threading.Lock()  # guards the count and the time
        self._next = 0.0

    def wait_for(self, size: int) -> None:
        """Wait until so many bytes may be sent, and count them."""
        with self._lock:
            self.sent_bytes += size
            self._next = max(self._next, time.monotonic()) + size / SOURCE_BYTES_PER_SECOND
            until = self._next
        time.sleep(max(0.0, until - time.monotonic()))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: _Source

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Write nothing."""

    def do_GET(self) -> None:
        """Answer a range, or everything."""
        data = self.source.data
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(match[1]), min(int(match[2]), len(data) - 1)) if match else (0, len(data) - 1)
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"1"')
        if match:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        for begin in range(first, last + 1, _PIECE_BYTES):
            piece = data[begin : min(begin + _PIECE_BYTES, last + 1)]
            self.source.wait_for(len(piece))
            self.wfile.write(piece)


@contextmanager
def _source(data: bytes) -> Iterator[_Source]:
    source = _Source(data)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"source": source}))
    server.daemon_threads = True
    source.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield source
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _safetensors(size_bytes: int) -> bytes:
    """Return a file of one tensor that cannot be packed."""
    head = json.dumps({"weight": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    return struct.pack("<Q", len(head)) + head + random.Random(1).randbytes(size_bytes)

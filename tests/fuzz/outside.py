"""What servers answer, what other nodes write into the shared store, and what operators' browsers ask for."""

from __future__ import annotations

import io
import socket
import zlib
from collections.abc import Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from fuzz.mutators import of_json
from fuzz.oracle import Target
from fuzz.targets import registry_record_seeds
from warmshelf.errors import InvalidSpec, WarmshelfError
from warmshelf.redis_uri import parse_redis_uri
from warmshelfd.http import Answer, Asked, _Handler, cannot_be_rebound
from warmshelfd.metrics import encoder_for
from warmshelfd.redis_wire import RedisAwayError, RedisWire
from warmshelfd.registry import residents, shared
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.records import registration_from_json, registration_to_json
from warmshelfd.sources.http_exchange import PORTS
from warmshelfd.sources.hub_uri import parse_hub_uri
from warmshelfd.sources.s3_uri import parse_s3_uri
from warmshelfd.sources.url_prefixes import parse_url
from warmshelfd.statusrows import wanted_by

ID = "acme/support-lora@v2"
NODE_ID = "0123456789abcdef"


# --- the shared store ---


def store_value(data: bytes) -> None:
    """A value as it stands in the store; or, so that what is behind the compression is reached, its JSON."""
    value = data if data[:1].isdigit() else b"7 kept " + zlib.compress(data, 1)
    found = shared.from_value(ID, value)
    if found.registration is not None:
        again = shared.from_value(ID, shared.to_value(found.revision, found.registration, 0))
        assert again.registration is not None
        assert shared.essence(again.registration) == shared.essence(found.registration)


def store_value_seeds() -> list[bytes]:
    parts = [shared.shared_part(registration_from_json(seed.decode())) for seed in registry_record_seeds()]
    return [b"7 removed 1700000000", b"7 kept x", *(registration_to_json(part).encode() for part in parts)]


def node_word(data: bytes) -> None:
    value = data[1:] if data[:1] == b"\0" else b"ab " + zlib.compress(data, 1)
    told = residents.from_value(NODE_ID, value)
    for one in told.after(""):
        assert told.find(one.artifact_id) == one


def node_word_seeds() -> list[bytes]:
    digest = b"blake3:" + b"0" * 64
    lines = [
        b"a/%d %b %d %b" % (number, digest, 1 << number, flags) for number, flags in enumerate((b"-", b"p", b"pk"))
    ]
    return [b"\n".join([b"node-a rack 10.0.0.1:50051 all", *lines]), b"\0ab x"]


class Scripted(socket.socket):
    """A peer that has said all it will, in a memory of its own."""

    def __init__(self, data: bytes) -> None:
        self._said = io.BytesIO(data)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return self._said.readinto(buffer)

    def settimeout(self, value: float | None) -> None:
        pass


VALUE_BYTES_MAX = 4096


def redis_reply(data: bytes) -> None:
    wire = RedisWire(Scripted(data), 1.0)
    wire.allow(60.0)
    while True:  # until it says that the connection is closed
        wire.reply(VALUE_BYTES_MAX)


def redis_reply_seeds() -> list[bytes]:
    stream = b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$2\r\nid\r\n$1\r\na\r\n"
    return [b"+OK\r\n:12\r\n$3\r\nabc\r\n$-1\r\n-ERR no\r\n*0\r\n*-1\r\n", stream]


# --- places ---


def other_uri(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for parse in (_url, lambda uri: parse_hub_uri(uri).uri, lambda uri: parse_s3_uri(uri).uri, _redis):
        try:
            canonical = parse(text)
        except WarmshelfError:
            continue
        assert parse(canonical) == canonical


def _url(text: str) -> str:
    return str(parse_url(text, PORTS))


def _redis(text: str) -> str:
    return str(parse_redis_uri(text))


def other_uri_seeds() -> list[bytes]:
    return [
        b"https://example.org:443/a/%7Eb/../c?x=1#y",
        b"http://[::ffff:127.0.0.1]/a.safetensors",
        b"hf://acme/model@main/sub/dir",
        b"s3://bucket/some/key/",
        b"redis://Cache:6379/3/some:key",
    ]


# --- the operators' pages ---


NO_METRICS = CollectorRegistry()


class Handler(_Handler):
    """The server's own, on a request in memory, with a page that lets nothing get lost."""

    def __init__(self, data: bytes) -> None:
        self.rfile, self.wfile = io.BytesIO(data), io.BytesIO()
        self.server: Any = SimpleNamespace(pages={"/": self.page})
        self.client_address, self.close_connection = ("127.0.0.1", 1), True
        self.bug: Exception | None = None
        self.handle_one_request()

    def page(self, asked: Asked) -> Answer:
        try:
            cannot_be_rebound(asked.host, {"own"})
            encode, content_type = encoder_for(asked.accept)
            encode(NO_METRICS)
            wanted = wanted_by(asked.query)
        except Exception as error:
            self.bug = error
            raise
        return Answer(HTTPStatus.OK, repr(wanted).encode(), content_type)


def http_request(data: bytes) -> None:
    handler = Handler(data)
    if handler.bug is not None:
        raise handler.bug
    head, _, _ = handler.wfile.getvalue().partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1."):  # to what has no version that it knows, the library answers without a head
        names = {line.partition(b":")[0] for line in head.split(b"\r\n")[1:]}
        assert names <= HEADERS, head


HEADERS = {
    *(b"Content-Type", b"Content-Length", b"X-Content-Type-Options", b"Cache-Control", b"Connection", b"Allow"),
}


def http_request_seeds() -> list[bytes]:
    head = b"Host: localhost:9464\r\nAccept: application/openmetrics-text; version=1.0.0; q=0.5, text/plain\r\n"
    return [
        b"GET /?after=acme/a&base=b&still=1 HTTP/1.1\r\n" + head + b"\r\n",
        b"HEAD / HTTP/1.0\r\nHost: [::1]:1\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
    ]


TARGETS: Mapping[str, Target] = {
    "store-value": Target(
        store_value, store_value_seeds, (BadRecord, InvalidSpec), seeds_are_good=False, mutator=of_json
    ),
    "node-word": Target(node_word, node_word_seeds, (BadRecord,), seeds_are_good=False),
    "redis-reply": Target(redis_reply, redis_reply_seeds, (RedisAwayError,), seeds_are_good=False),
    "other-uri": Target(other_uri, other_uri_seeds),
    "http-request": Target(http_request, http_request_seeds),
}
"""Every target here by its name."""

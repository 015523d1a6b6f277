"""Servers that hang, lie, refuse or go away, and how a source logs in at one that does not."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import pytest

from kit.ports import free_port
from kit.redis_faults import Closes, Drips, FaultyServer, Floods, Says, Silent
from kit.redis_server import RedisServer, TlsProxy, redis_server
from warmshelf import errors
from warmshelf.redis_store import StoreAccess, write_directory
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.tensorizer_pieces import tensor_pieces
from warmshelfd.redis_wire import Patience
from warmshelfd.sources.redis import RedisOpener
from warmshelfd.sources.settings import SourceSettings

Make = Callable[..., RedisOpener]
PASSWORD = "canary-5e7a1"
READER = f"reader on >{PASSWORD} ~warmshelf:* ~models/* +type +strlen +hmget +getrange +select"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "written"
    path.mkdir()
    (path / "config.json").write_bytes(b"{}")
    return path


def settings(prefix: str, monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD, **more: str) -> SourceSettings:
    monkeypatch.setenv("PASSWORD_OF_TEST", password)
    return SourceSettings(prefix=prefix, password="env:PASSWORD_OF_TEST", **more)


@pytest.mark.parametrize(
    "server",
    [
        Silent(),
        Closes(),
        Drips(),
        Floods(),
        Says(b"$9223372036854775807\r\n"),
        Says(b"$-7\r\n"),
        Says(b"*1000000000\r\n"),
        Says(b":5\r\n:5\r\n"),
        Says(b"+hash\r\n$4\r\nnone!!"),
        Says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Says(b"\x15\x03\x01\x00\x02\x02\x46\r\n"),
    ],
    ids=lambda server: type(server).__name__,
)
def test_what_is_no_redis_is_given_up_soon_and_makes_us_allocate_nothing(
    server: FaultyServer, redis_opener: Make
) -> None:
    with server:
        tracemalloc.start()
        began = time.monotonic()
        try:
            with pytest.raises(errors.SourceUnavailable) as caught:
                redis_opener(server.uri("models")).open(server.uri("models/a"))
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        assert time.monotonic() - began < 6
        assert f"127.0.0.1:{server.port}" in caught.value.message
        assert caught.value.retryable


@pytest.mark.parametrize(
    ("reply", "attempts"),
    [
        ("LOADING Redis is loading the dataset in memory", 2),
        ("BUSY a script runs", 2),
        ("MISCONF Redis cannot persist", 1),
        ("OOM command not allowed", 1),
        ("NOAUTH Authentication required.", 1),
        ("NOPERM this user has no permissions", 1),
        ("MOVED 3999 10.0.0.7:6381", 1),
        (f"ERR unknown command `AUTH`, with args beginning with: `{PASSWORD}`", 1),
    ],
)
def test_an_error_of_the_server_is_named_by_its_code_and_repeated_by_nobody(
    reply: str, attempts: int, redis_opener: Make
) -> None:
    """R7: those that pass are tried again; addresses and arguments in the text go nowhere."""
    with Says(f"-{reply}\r\n".encode()) as server:
        with pytest.raises(errors.SourceUnavailable) as caught:
            redis_opener(server.uri("models")).open(server.uri("models/a"))
        code = reply.partition(" ")[0]
        assert (caught.value.details["code"], code in caught.value.message) == (code, True)
        assert reply.partition(" ")[2] not in str(caught.value)
        assert (server.connections > 1) == (attempts > 1)


def test_a_server_that_is_not_there_is_unavailable(redis_opener: Make) -> None:
    uri = f"redis://127.0.0.1:{free_port()}/0/models/a"
    with pytest.raises(errors.SourceUnavailable, match="cannot be reached"):
        redis_opener(uri).open(uri)


def test_a_broken_connection_is_made_anew(server: RedisServer, directory: Path, redis_opener: Make) -> None:
    uri = write_directory(server.uri("models"), "a", directory)
    with redis_opener(uri).open(uri) as source, server.client() as client:
        for connection in client.client_list(_type="normal"):
            if connection["id"] != str(client.client_id()):
                client.client_kill_filter(_id=connection["id"])
        assert source.read("config.json", 0, 2) == b"{}"


def test_a_paused_server_is_given_up_and_read_again_when_it_goes_on(
    tmp_path: Path, directory: Path, redis_opener: Make
) -> None:
    """R3: on an open connection; the next read after it works."""
    with redis_server(tmp_path) as server:
        uri = write_directory(server.uri("models"), "a", directory)
        with redis_opener(uri).open(uri) as source:
            server.pause()
            with pytest.raises(errors.SourceUnavailable, match="does not answer"):
                source.read("config.json", 0, 2)
            server.resume()
            assert source.read("config.json", 0, 2) == b"{}"


# --- logging in ---------------------------------------------------------------


def test_a_user_who_may_only_read_keys_below_the_prefix_is_enough(
    tmp_path: Path, directory: Path, redis_opener: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T24: none of the commands that write, list or run scripts is needed."""
    with redis_server(tmp_path, password="owner", users=[READER]) as server:
        uri = write_directory(server.uri("models", db=2), "a", directory, access=StoreAccess(password="owner"))
        allowed = server.uri("models", db=2)
        reader = settings(f"redis://{server.host}:{server.port}", monkeypatch, username="reader")
        with redis_opener(allowed, settings=[reader]).open(uri) as source:
            assert source.read("config.json", 0, 2) == b"{}"
        wrong = settings(allowed, monkeypatch, password=f"{PASSWORD}-wrong", username="reader")
        for given in ([], [wrong]):
            with pytest.raises(errors.SourceUnavailable, match="credentials") as caught:
                redis_opener(allowed, settings=given).open(uri)
            assert PASSWORD not in f"{caught.value} {caught.value.details}"


def test_a_login_at_a_server_that_wants_none_is_refused_in_words(
    server: RedisServer, redis_opener: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = server.uri("models")
    with pytest.raises(errors.WarmshelfError, match=r"login|credentials") as caught:
        redis_opener(allowed, settings=[settings(allowed, monkeypatch)]).open(server.uri("models/a"))
    assert caught.value.reason == "SOURCE_UNAVAILABLE"


def test_a_user_without_a_password_and_a_secret_that_is_not_set_are_the_configurations_fault(
    server: RedisServer, redis_opener: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = server.uri("models")
    unset = SourceSettings(prefix=allowed, password="env:NOT_SET_BY_ANY_TEST")
    for given in (SourceSettings(prefix=allowed, username="me"), unset):
        with pytest.raises(errors.InvalidConfig):
            redis_opener(allowed, settings=[given]).open(server.uri("models/a"))


def test_tls_is_spoken_and_the_server_must_prove_who_it_is(
    server: RedisServer, tmp_path: Path, directory: Path, redis_opener: Make
) -> None:
    """S13: the authority is the configured one, and the name that of the URI."""
    with TlsProxy(server, tmp_path) as proxy:
        access = StoreAccess(ca_file=str(proxy.ca_file))
        uri = write_directory(proxy.uri("models"), "a", directory, access=access)
        assert uri.startswith("rediss://localhost:")
        trusted = SourceSettings(prefix=proxy.uri(), ca_file=str(proxy.ca_file))
        with redis_opener(proxy.uri("models"), scheme="rediss", settings=[trusted]).open(uri) as source:
            assert source.read("config.json", 0, 2) == b"{}"
        with pytest.raises(errors.SourceUnavailable, match="certificate"):
            redis_opener(proxy.uri("models"), scheme="rediss").open(uri)
        elsewhere = uri.replace("localhost", "127.0.0.1")
        trusted = SourceSettings(prefix=f"rediss://127.0.0.1:{proxy.port}", ca_file=str(proxy.ca_file))
        with pytest.raises(errors.SourceUnavailable, match="certificate"):
            redis_opener(elsewhere, scheme="rediss", settings=[trusted]).open(elsewhere)


# --- what may be opened -------------------------------------------------------


@pytest.mark.parametrize("place", ["models2/a", "model", "a", "models%2Fa"])
def test_nothing_outside_the_allowed_prefixes_is_asked_for(place: str, server: RedisServer, redis_opener: Make) -> None:
    """Parts count whole; the text is the same whether or not something is there; no connection is made."""
    with server.client() as client:
        before = client.info("stats")["total_connections_received"]
        opener = redis_opener(server.uri("models"))
        with pytest.raises((errors.SourceNotAllowed, errors.InvalidSpec)):
            opener.open(server.uri(place))
        with pytest.raises(errors.SourceNotAllowed):
            opener.open(server.uri("models/a", db=1))
        with pytest.raises(errors.SourceNotAllowed):
            opener.open("redis://127.0.0.1:1/0/models/a")
        with pytest.raises(errors.SourceNotAllowed):
            redis_opener().open(server.uri("models/a"))
        assert client.info("stats")["total_connections_received"] == before


def test_a_revision_is_refused(server: RedisServer, redis_opener: Make) -> None:
    with pytest.raises(errors.InvalidSpec, match="no revisions"):
        redis_opener(server.uri("models")).open(server.uri("models/a"), "main")


def test_a_read_that_waits_ends_soon_when_the_source_is_stopped(server: RedisServer, directory: Path) -> None:
    """S5: neither the silence it would bear nor its retries are waited for."""
    uri = write_directory(server.uri("models"), "a", directory)
    patient = Patience(silence_seconds=60, work_seconds=60, retry_seconds=60)
    opener = RedisOpener("redis", [server.uri("models")], [], partial(tensor_pieces, limits=FormatLimits()), patient)
    assert opener.place(uri) == f"redis://{server.host}:{server.port}"
    assert opener.place(server.uri("elsewhere/a")) == ""
    with opener.open(uri) as source, ThreadPoolExecutor(1) as thread:
        server.pause()
        try:
            reading = thread.submit(source.read, "config.json", 0, 2)
            assert not wait([reading], 0.2).done
            source.stop()
            with pytest.raises(errors.LoadCancelled):
                reading.result(10)
        finally:
            server.resume()

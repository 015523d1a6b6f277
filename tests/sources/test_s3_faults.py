"""A server of S3 that is busy, cuts connections, falls silent, or is not who it should be."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
import trustme

from kit.fault_proxy import Busy, Cut, Fault, FaultProxy, Hold
from kit.models import pattern
from kit.s3_opening import QUICK, opener_of
from kit.weed import Bucket
from warmshelf.errors import LoadCancelled, SourceNotFound, SourceUnavailable, WarmshelfError
from warmshelfd.sources.ahead import AHEAD_BYTES_MAX, ReadAhead
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.s3 import S3Opener
from warmshelfd.sources.settings import SourceSettings

pytestmark = pytest.mark.usefixtures("keys")

KEYS = {"access_key_id": "env:KEY_OF_TEST", "secret_access_key": "env:SECRET_OF_TEST"}
DATA = pattern(7, 3 << 20)


@pytest.fixture
def source(bucket: Bucket, proxy: FaultProxy) -> OpenSource:
    """An open object of 3 MiB behind the proxy, read through to its end by each test."""
    bucket.put("m.safetensors", DATA)
    return opener_of(proxy.endpoint, bucket.uri).open(f"{bucket.uri}/m.safetensors")


@pytest.mark.parametrize("fault", [Busy(times=2), Cut(times=2)], ids=repr)
def test_a_fault_that_passes_is_not_seen(source: OpenSource, proxy: FaultProxy, fault: Busy | Cut) -> None:
    """B29: a cut answer is gone on with from where it ended, on condition that the object is the same."""
    proxy.fault = fault
    assert source.read("m.safetensors", 1, len(DATA) - 1) == DATA[1:]
    assert fault.count == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Busy(), "503 SlowDown"),
        (Cut(), "ended in the middle of an answer"),
        (Hold(), "did not answer in time"),
    ],
    ids=lambda it: it if isinstance(it, str) else repr(it)[:4],
)
def test_a_fault_that_stays_is_told_in_time_and_may_be_tried_again(
    source: OpenSource, proxy: FaultProxy, fault: Fault, words: str
) -> None:
    """B33: neither the server's words nor a signature are repeated."""
    proxy.fault = fault
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=words) as caught:
        source.read("m.safetensors", 1, len(DATA) - 1)
    assert time.monotonic() - began < 5
    assert caught.value.retryable
    assert "canary" not in str(caught.value).lower()
    assert caught.value.__cause__ is None


def test_a_source_that_is_stopped_ends_its_reads_at_once(bucket: Bucket, proxy: FaultProxy) -> None:
    """And later ones: none of them waits for the server, however patient the daemon is."""
    bucket.put("m.safetensors", DATA)
    patient = S3Opener([bucket.uri], [SourceSettings(prefix="s3://", endpoint=proxy.endpoint, **KEYS)])
    with patient.open(f"{bucket.uri}/m.safetensors") as source:
        source.files()
        proxy.fault = hold = Hold()
        caught: list[BaseException] = []
        thread = threading.Thread(target=lambda: caught.append(failure_of(source)))
        thread.start()
        assert hold.reached.wait(10)
        source.stop()
        thread.join(5)
        assert not thread.is_alive()
        assert isinstance(caught[0], LoadCancelled)
        assert isinstance(failure_of(source), LoadCancelled)


def failure_of(source: OpenSource) -> WarmshelfError:
    with pytest.raises(WarmshelfError) as caught:
        source.read("m.safetensors", 1, len(DATA) - 1)
    return caught.value


def test_nobody_at_the_endpoint_is_told_in_time(bucket: Bucket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(SourceUnavailable, match="no connection to the server"):
        opener_of(f"http://127.0.0.1:{port}", bucket.uri).open(bucket.uri).files()


def test_without_any_credentials_it_says_so(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last place that AWS's tools look at is the instance's metadata; here nobody answers there."""
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    opener = S3Opener([bucket.uri], [SourceSettings(prefix="s3://", endpoint=bucket.server.endpoint)], QUICK)
    with pytest.raises(SourceUnavailable, match="no credentials were found"):
        opener.open(bucket.uri).files()


# --- TLS ----------------------------------------------------------------------------


def test_a_private_authority_is_trusted_where_the_operator_says_so(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("x", b"x")
    endpoint, stranger = bucket.server.tls_endpoint, tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    with opener_of(endpoint, bucket.uri, ca_file=str(bucket.server.authority)).open(f"{bucket.uri}/x") as source:
        assert source.read("x", 0, 1) == b"x"
    with pytest.raises(SourceUnavailable, match="not trusted"):
        opener_of(endpoint, bucket.uri, ca_file=str(stranger)).open(f"{bucket.uri}/x").files()


# --- reading ahead --------------------------------------------------------------------


def test_what_is_read_ahead_is_bounded_and_forgotten_once_data_is_read() -> None:
    """B40."""
    asked = []

    def fetch(name: str, offset: int, size: int) -> bytes:
        asked.append(name)
        return bytes(size)

    ahead = ReadAhead(fetch)
    part = AHEAD_BYTES_MAX // 4
    ahead.expect((str(i), 0, part) for i in range(5))
    ahead.expect((str(i), 0, part) for i in range(5))
    assert sorted(asked) == ["0", "1", "2", "3"]
    view = memoryview(bytearray(100))
    assert ahead.copy_to("0", part - 100, view)
    assert not ahead.copy_to("0", part - 99, view)
    assert not ahead.copy_to("4", 0, view)
    assert not ahead.copy_to("0", 0, memoryview(bytearray(part)))
    assert not ahead.copy_to("0", 0, view)


@pytest.mark.parametrize(("error", "is_raised"), [(SourceUnavailable("x"), True), (SourceNotFound("x"), False)])
def test_only_an_outage_ends_reading_ahead(error: Exception, is_raised: bool) -> None:
    """All else may concern a file that nobody will ask for."""

    def fetch(name: str, offset: int, size: int) -> bytes:
        raise error

    ahead = ReadAhead(fetch)
    if is_raised:
        with pytest.raises(SourceUnavailable):
            ahead.expect([("a", 0, 1), ("b", 0, 1)])
    else:
        ahead.expect([("a", 0, 1), ("b", 0, 1)])

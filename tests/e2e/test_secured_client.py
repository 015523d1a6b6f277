"""The client over TLS: with a certificate or a token, from arguments, files or the environment, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.authority import Authority, Pair, put
from kit.guarded import Guarded
from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from kit.quick_daemon import QuickDaemon
from warmshelf import ChangeKind, Tls
from warmshelf.errors import DaemonUnreachable, InvalidRequest, PermissionDenied, Unauthenticated

DAEMON = QuickDaemon

VARIABLES = ("WARMSHELF_TLS_CA", "WARMSHELF_TLS_CERT", "WARMSHELF_TLS_KEY", "WARMSHELF_TOKEN_FILE")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmshelf._channel.FIRST_CONTACT_SECONDS", 0.3)


@pytest.fixture
def by_token(daemon: Daemon) -> Guarded:
    return Guarded(daemon, by_certificate=False).start()


@pytest.fixture
def by_certificate(daemon: Daemon) -> Guarded:
    return Guarded(daemon, by_certificate=True).start()


def ca(guarded: Guarded) -> str:
    return f"{guarded.daemon.root}/ca.pem"


def tls_of(guarded: Guarded, pair: Pair | None = None, name: str = "client") -> Tls:
    """What a client knows that was given this certificate."""
    if pair is None:
        return Tls(ca(guarded), server_name="localhost")
    cert, key = pair.write(guarded.daemon.root, name)
    return Tls(ca(guarded), str(cert), str(key), "localhost")


@pytest.fixture(params=[True, False], ids=["certificate", "token"])
def operator(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[warmshelf.Shelf]:
    """A shelf of an operator's, over TCP."""
    guarded = Guarded(daemon, by_certificate=request.param).start()
    tls = tls_of(guarded, guarded.pair("operator") if request.param else None)
    token = None if request.param else guarded.token("operator")
    with warmshelf.connect(daemon.tcp_address, tls=tls, token=token, timeout=20) as shelf:
        yield shelf


def test_everything_works_over_tls_streams_too(operator: warmshelf.Shelf, models: Path, tmp_path: Path) -> None:
    tensors = write_model(models / "a.safetensors", 1, 3 << 20)
    operator.register("a", models / "a.safetensors")
    assert list(operator.load("a"))[-1].artifact is not None
    with operator.acquire("a") as lease:
        assert lease.transport == "streamed"
        assert read_all(lease) == tensors
        assert [one.artifact_id for one in operator.leases()] == ["a"]
    assert {spec.name for spec, _ in operator.stream_tensors("a")} == tensors.keys()
    operator.push("b", path=models / "a.safetensors")
    with operator.watch() as changes:
        first = [next(changes) for _ in range(3)]
    assert [change.kind for change in first] == [ChangeKind.CHANGED, ChangeKind.CHANGED, ChangeKind.COMPLETE]
    operator.verify("a")
    operator.evict("a")
    operator.remove("b")


def test_roles_and_tokens_are_refused_with_classes_of_their_own(by_token: Guarded, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    address, tls = by_token.daemon.tcp_address, tls_of(by_token)
    with warmshelf.connect(address, tls=tls, token=by_token.token("reader"), timeout=20) as shelf:
        with pytest.raises(PermissionDenied, match="the-reader has reader") as denied:
            shelf.register("a", models / "a.safetensors")
        assert denied.value.details["identity"] == "the-reader"
        assert not denied.value.retryable
    for token in (None, "a-token-of-nobody-at-all"):
        with warmshelf.connect(address, tls=tls, token=token, timeout=20) as shelf:
            with pytest.raises(Unauthenticated, match="token"):
                shelf.get("a")
            with pytest.raises(Unauthenticated):
                shelf.acquire("a")
            with pytest.raises(Unauthenticated), shelf.watch() as changes:
                next(changes)


def test_a_token_in_a_file_is_read_for_each_call_and_a_bad_file_is_named(by_token: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(by_token.token("reader") + "\n")
    with warmshelf.connect(by_token.daemon.tcp_address, tls=tls_of(by_token), token=path, timeout=2) as shelf:
        with pytest.raises(PermissionDenied):
            shelf.leases()
        put(path, by_token.token("operator").encode())
        assert shelf.leases() == []
        put(path, b"canary canary")
        with pytest.raises(DaemonUnreachable, match=str(path)) as caught:
            shelf.leases()
        assert "canary" not in str(caught.value)
        path.unlink()
        with pytest.raises(DaemonUnreachable, match="No such file"):
            shelf.leases()


def test_a_token_at_a_unix_socket_makes_one_more_than_the_others(daemon: Daemon) -> None:
    guarded = Guarded(daemon, by_certificate=False).start("--anonymous-roles", "reader")
    with daemon.connect() as shelf, pytest.raises(PermissionDenied, match="a caller without an identity"):
        shelf.leases()
    with daemon.connect(token=guarded.token("operator")) as shelf:
        assert shelf.leases() == []


def test_the_environment_names_them_for_programs_and_for_the_command(
    by_token: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = by_token.daemon.tcp_address.replace("127.0.0.1", "localhost")
    options = ["--tls-ca", ca(by_token), "--token-file", str(by_token.token_file("operator"))]
    command = [sys.executable, "-m", "warmshelf.cli", "--address", address]
    assert subprocess.run([*command, *options, "leases"], capture_output=True, check=True).stderr == b""
    without = subprocess.run([*command, *options[:2], "leases"], capture_output=True, text=True, check=False)
    assert (without.returncode, "UNAUTHENTICATED" in without.stderr) == (1, True)
    plain = subprocess.run([*command, *options[2:], "leases"], capture_output=True, text=True, check=False)
    assert (plain.returncode, "plain TCP" in " ".join(plain.stderr.split())) == (2, True)
    assert "--tls-ca" in plain.stderr
    monkeypatch.setenv("WARMSHELF_TLS_CA", ca(by_token))
    monkeypatch.setenv("WARMSHELF_TOKEN_FILE", str(by_token.token_file("operator")))
    with warmshelf.connect(address, timeout=20) as shelf:
        assert shelf.leases() == []
    assert subprocess.run([*command, "leases"], capture_output=True, check=True).stderr == b""
    with by_token.daemon.connect() as shelf:  # at a Unix socket there is no TLS, and the token goes along
        assert shelf.leases() == []


def test_bench_streams_by_the_same_right(by_token: Guarded, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    with by_token.daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
    options = ["--tls-ca", ca(by_token), "--token-file", str(by_token.token_file("operator"))]
    address = by_token.daemon.tcp_address.replace("127.0.0.1", "localhost")
    command = [sys.executable, "-m", "warmshelf.cli", "--address", address, *options, "bench", "--rounds", "1", "a"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_doctor_asks_by_the_same_right(by_token: Guarded, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    with by_token.daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        list(shelf.load("a"))
    options = ["--tls-ca", ca(by_token), "--token-file", str(by_token.token_file("reader"))]
    address = by_token.daemon.tcp_address.replace("127.0.0.1", "localhost")
    command = [sys.executable, "-m", "warmshelf.cli", "--address", address, "--output", "json"]

    def found(*options: str) -> tuple[int, dict[str, str]]:
        words = [*command, *options, "doctor", "--worker", "--arena", str(by_token.daemon.arena)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, {one["check"]: one["level"] for one in json.loads(done.stdout)["findings"]}

    status, levels = found(*options)
    assert (status, levels["daemon"], levels["worker-mapping"]) == (0, "ok", "ok")
    status, levels = found(*options[:2])
    assert (status, levels["access"]) == (1, "problem")


@pytest.mark.parametrize("in_environment", [True, False])
def test_a_token_is_never_sent_over_plain_tcp(
    running: Daemon, tmp_path: Path, in_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").write_text("a-token-of-somebody")
    if in_environment:
        monkeypatch.setenv("WARMSHELF_TOKEN_FILE", str(tmp_path / "t"))
    with pytest.raises(InvalidRequest, match="plain TCP") as caught:
        warmshelf.connect(running.tcp_address, token=None if in_environment else "a-token-of-somebody")
    assert ("unset WARMSHELF_TOKEN_FILE" in caught.value.message) == in_environment
    assert "a-token" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "canary canary", "canary\n", "cänary", "canary" * 2_000])
def test_what_is_no_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        warmshelf.connect("localhost:1", tls=Tls(), token=token)
    assert "canary" not in str(caught.value)
    assert "cänary" not in str(caught.value)


def test_a_token_is_not_shown_by_what_holds_it() -> None:
    with warmshelf.connect("localhost:1", tls=Tls(), token="canary-0123456789") as shelf:
        assert "canary" not in repr(shelf) + repr(vars(shelf))


def test_a_daemon_that_is_not_the_one_is_not_spoken_to(by_certificate: Guarded, tmp_path: Path) -> None:
    """S13 for our own daemon: another authority, another name, a certificate that has run out on our side."""
    (tmp_path / "other.pem").write_bytes(Authority("another").cert)
    good = tls_of(by_certificate, by_certificate.pair("reader"))
    late = by_certificate.authority.issue("x", uri=["spiffe://cluster/reader"], shift_days=-9)
    for tls, why in (
        (Tls(str(tmp_path / "other.pem"), good.cert, good.key, "localhost"), "CERTIFICATE_VERIFY_FAILED"),
        (Tls(good.ca, good.cert, good.key, "another.example"), "Hostname Verification"),
        (Tls(good.ca, server_name="localhost"), "no daemon answers.*demands a certificate, give --tls-cert"),
        (tls_of(by_certificate, late, "late"), "no daemon answers.*may not trust the certificate"),
        (None, "no daemon answers.*demands TLS, give --tls-ca"),
    ):
        with (
            warmshelf.connect(by_certificate.daemon.tcp_address, tls=tls, timeout=5) as shelf,
            pytest.raises(DaemonUnreachable, match=why),
        ):
            shelf.capabilities()


def test_who_disagrees_on_tls_is_told_at_once_and_not_after_all_patience(
    by_certificate: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmshelf._channel.FIRST_CONTACT_SECONDS", 60)
    (tmp_path / "other.pem").write_bytes(Authority("another").cert)
    for tls in (Tls(str(tmp_path / "other.pem"), server_name="localhost"), tls_of(by_certificate), None):
        began = time.monotonic()
        with (
            warmshelf.connect(by_certificate.daemon.tcp_address, tls=tls, timeout=60) as shelf,
            pytest.raises(DaemonUnreachable, match="--tls-c"),
        ):
            shelf.capabilities()
        assert time.monotonic() - began < 10


def test_a_daemon_that_speaks_no_tls_is_told_at_once(
    running: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmshelf._channel.FIRST_CONTACT_SECONDS", 60)
    (tmp_path / "ca.pem").write_bytes(Authority().cert)
    began = time.monotonic()
    with (
        warmshelf.connect(running.tcp_address, tls=Tls(str(tmp_path / "ca.pem")), timeout=60) as shelf,
        pytest.raises(DaemonUnreachable, match="does not speak TLS"),
    ):
        shelf.capabilities()
    assert time.monotonic() - began < 10


def test_a_renewed_certificate_of_the_client_serves_from_the_next_call_on_and_leases_stay(
    by_certificate: Guarded, models: Path
) -> None:
    """Z3. Nothing of what is held ends, and everything ends with the shelf."""
    tensors = write_model(models / "a.safetensors", 1)
    tls = tls_of(by_certificate, by_certificate.pair("operator"))
    with warmshelf.connect(by_certificate.daemon.tcp_address, tls=tls, timeout=20) as shelf:
        shelf.register("a", models / "a.safetensors")
        lease = shelf.acquire("a")
        tls_of(by_certificate, by_certificate.pair("reader"))  # into the same files
        with pytest.raises(PermissionDenied, match="the-reader"):
            shelf.leases()
        with shelf.acquire("a") as second, by_certificate.daemon.connect() as local:
            assert len(local.leases()) == 2
            assert read_all(second) == read_all(lease) == tensors
    with by_certificate.daemon.connect() as local:
        eventually(lambda: not local.leases(), "both leases have ended")


def test_a_certificate_of_the_client_that_is_renewed_file_by_file_fails_no_call(by_certificate: Guarded) -> None:
    """Z3: between the two its key is another's, and later one of them is gone."""
    tls = tls_of(by_certificate, by_certificate.pair("operator"))
    new = by_certificate.pair("reader")
    with warmshelf.connect(by_certificate.daemon.tcp_address, tls=tls, timeout=20) as shelf:
        assert shelf.leases() == []
        put(Path(tls.cert), new.cert)
        assert shelf.leases() == []
        put(Path(tls.key), new.key)
        with pytest.raises(PermissionDenied, match="the-reader"):
            shelf.leases()
        Path(tls.cert).unlink()
        assert shelf.list() == []


def test_credentials_of_grpcs_own_are_taken_as_they_are(by_token: Guarded) -> None:
    credentials = grpc.ssl_channel_credentials(by_token.authority.cert)
    address = by_token.daemon.tcp_address.replace("127.0.0.1", "localhost")
    with warmshelf.connect(address, tls=credentials, token=by_token.token("operator"), timeout=20) as shelf:
        assert shelf.leases() == []


def test_files_that_cannot_be_read_or_do_not_belong_together_are_told() -> None:
    with pytest.raises(InvalidRequest, match="go together"):
        warmshelf.connect("localhost:1", tls=Tls(cert="/c.pem"))
    with (
        warmshelf.connect("localhost:1", tls=Tls(ca="/nowhere/ca.pem")) as shelf,
        pytest.raises(InvalidRequest, match=r"/nowhere/ca\.pem.*No such file"),
    ):
        shelf.list()
    with pytest.raises(InvalidRequest, match="Unix socket"):
        warmshelf.connect("unix:///nowhere/api.sock", tls=Tls())
    assert os.environ.get("WARMSHELF_TLS_CA") is None

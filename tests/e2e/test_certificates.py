"""The daemon's certificate and what it trusts: renewed while it serves, and refused where they are no good."""

from __future__ import annotations

import os
import re
from pathlib import Path

import grpc
import pytest

from kit.authority import Authority, Pair, channel, put
from kit.guarded import Guarded, opened, refusal
from kit.processes import Daemon, eventually
from kit.scrape import HTTP, pages_of

CHECK = "grpc.health.v1.Health/Check"
LIST = "warmshelf.v1.CatalogService/ListArtifacts"


def answers(address: str, ca: bytes, pair: Pair | None = None) -> bool:
    """Whether a new connection gets as far as a call."""
    with opened(channel(address, ca, pair)) as fresh:
        return refusal(fresh, CHECK) == ""


def test_a_renewed_certificate_serves_new_connections_on_every_address_and_old_streams_go_on(by_token: Guarded) -> None:
    """Z3."""
    by_token.start("--listen", "127.0.0.2:0")
    addresses = re.findall(r"127\.0\.0\.[12]:\d+", by_token.daemon.ready_line)
    assert len(addresses) == 2
    old, new = by_token.authority, Authority("another authority")
    with opened(by_token.channel_of("operator")) as early:
        session = early.unary_stream("/warmshelf.v1.LeaseService/OpenSession")(b"")
        next(session)
        by_token.renew(new.issue("daemon", dns=["localhost"]))
        for address in addresses:
            eventually(lambda address=address: answers(address, new.cert), "the new certificate is shown")
            assert not answers(address, old.cert)
        assert refusal(early, LIST) == ""
        assert session.is_active()


def test_a_certificate_that_is_no_good_changes_nothing_and_is_told_once(by_token: Guarded) -> None:
    """Z3: half written, with another's key, expired."""
    by_token.start(*HTTP)
    root, address, pages = by_token.daemon.root, by_token.daemon.tcp_address, pages_of(by_token.daemon)
    whole = by_token.authority.issue("daemon", dns=["localhost"])
    expired = by_token.authority.issue("daemon", dns=["localhost"], shift_days=-9)

    def refused_count() -> float:
        return pages.scrape()["warmshelf_credentials_refused_total"]

    for count, bad in enumerate(
        (Pair(whole.cert[:200], whole.key), Pair(whole.cert, expired.key), expired, Pair(whole.cert, b"")), start=1
    ):
        bad.write(root, "daemon")
        eventually(lambda count=count: refused_count() >= count, "it is told")
        assert answers(address, by_token.authority.cert)
    seen = refused_count()
    new = Authority()
    by_token.renew(new.issue("daemon", dns=["localhost"]))
    eventually(lambda: answers(address, new.cert), "a good one is taken")
    text = by_token.daemon.log.read_text()
    assert "has expired" in text
    assert text.count("new credentials are not taken") == seen


def test_authorities_of_callers_are_renewed_too(by_certificate: Guarded) -> None:
    by_certificate.start()
    new, ca = Authority(), by_certificate.authority.cert
    address = by_certificate.daemon.tcp_address
    reader = "spiffe://cluster/reader"
    old_pair, new_pair = by_certificate.pair("reader"), new.issue("x", uri=[reader])
    assert answers(address, ca, old_pair)
    assert not answers(address, ca, new_pair)
    put(by_certificate.daemon.root / "ca.pem", b"no certificate")
    eventually(lambda: "no certificate of an authority" in by_certificate.daemon.log.read_text(), "it is told")
    assert answers(address, ca, old_pair)
    put(by_certificate.daemon.root / "ca.pem", new.cert)
    eventually(lambda: answers(address, ca, new_pair), "the new authority is trusted")
    assert not answers(address, ca, old_pair)


def test_a_daemon_whose_certificate_is_no_good_does_not_start(by_token: Guarded) -> None:
    expired = by_token.authority.issue("daemon", shift_days=-9)
    cert, key = expired.write(by_token.daemon.root, "old")
    by_token.start()
    by_token.daemon.kill()
    config = f"{by_token.daemon.root}/warmshelfd.toml"
    by_token.daemon.start(
        "--listen-cert-file", str(cert), "--listen-key-file", str(key), "--config", config, wait=False
    )  # fmt: skip
    assert by_token.daemon.wait() == 2
    assert "has expired" in by_token.daemon.log.read_text()


def test_strangers_at_the_door_write_nothing_into_the_log(by_token: Guarded) -> None:
    """Whoever reaches the port may fail as often as they like."""
    by_token.start()
    before = by_token.daemon.log.read_text()
    with opened(grpc.insecure_channel(by_token.daemon.tcp_address)) as plain:
        assert refusal(plain, CHECK) == "UNAVAILABLE"
    assert not answers(by_token.daemon.tcp_address, Authority().cert)
    assert by_token.daemon.log.read_text() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory to another user")
def test_a_socket_is_not_put_where_another_user_could_replace_it(daemon: Daemon, tmp_path: Path) -> None:
    daemon.socket.parent.mkdir()
    os.chown(daemon.socket.parent, 12345, 12345)
    daemon.start(wait=False)
    assert daemon.wait() == 2
    assert "belongs to user 12345, who could replace the socket" in daemon.log.read_text()

"""TLS to web servers: who is trusted, and that there is no way around it."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from kit.web import Web, serving
from kit.web_openers import QUICK, opener_for
from warmshelf.errors import InvalidConfig, SourceUnavailable


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def context(cert: trustme.LeafCert) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(made)
    return made


@contextmanager
def one_file(tls: ssl.SSLContext) -> Iterator[tuple[Web, str]]:
    with serving(tls) as web:
        yield web, web.put("/m", {"w.tensors": b"x" * 100_000}) + "w.tensors"


def sizes(web: Web, url: str, **settings: object) -> dict[str, int]:
    with opener_for([web.url], [{"prefix": web.url, "allow_private": True, **settings}]).open(url) as source:
        return dict(source.files())


def test_a_server_with_a_trusted_certificate_is_read(authority: trustme.CA, ca_file: str) -> None:
    with one_file(context(authority.issue_cert("127.0.0.1"))) as (web, url):
        assert sizes(web, url, ca_file=ca_file) == {"w.tensors": 100_000}


def test_a_certificate_of_an_unknown_authority_is_refused_before_anything_is_asked(authority: trustme.CA) -> None:
    with one_file(context(authority.issue_cert("127.0.0.1"))) as (web, url):
        with pytest.raises(SourceUnavailable, match="certificate is not trusted"):
            sizes(web, url)
        assert web.asked == []
        assert web.connections == 1  # nor is it tried again


def test_a_certificate_of_another_host_is_refused(authority: trustme.CA, ca_file: str) -> None:
    with one_file(context(authority.issue_cert("other.example", "127.0.0.2"))) as (web, url):
        with pytest.raises(SourceUnavailable, match="certificate is not trusted"):
            sizes(web, url, ca_file=ca_file)
        assert web.asked == []


def test_an_expired_certificate_is_refused(authority: trustme.CA, ca_file: str) -> None:
    now = dt.datetime.now(dt.timezone.utc)
    cert = authority.issue_cert("127.0.0.1", not_after=now - dt.timedelta(days=1))
    with one_file(context(cert)) as (web, url):
        with pytest.raises(SourceUnavailable, match="expired"):
            sizes(web, url, ca_file=ca_file)
        assert web.asked == []


def test_an_old_protocol_is_refused(authority: trustme.CA, ca_file: str) -> None:
    old = context(authority.issue_cert("127.0.0.1"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with one_file(old) as (web, url):
        with pytest.raises(SourceUnavailable):
            sizes(web, url, ca_file=ca_file)
        assert web.asked == []


def test_a_server_without_tls_is_not_spoken_to_plainly(ca_file: str) -> None:
    with serving() as web:
        web.put("/m", {"w.tensors": b"x"})
        secure = web.url.replace("http:", "https:")
        opener = opener_for([secure], [{"prefix": secure, "allow_private": True, "ca_file": ca_file}])
        with opener.open(f"{secure}/m/w.tensors") as source, pytest.raises(SourceUnavailable):
            source.files()
        assert web.asked == []


def test_a_file_of_authorities_that_cannot_be_used_is_named(authority: trustme.CA) -> None:
    with one_file(context(authority.issue_cert("127.0.0.1"))) as (web, url):
        with pytest.raises(InvalidConfig, match=r"/nowhere/ca\.pem"):
            sizes(web, url, ca_file="/nowhere/ca.pem")
        assert web.connections == 0


def test_a_handshake_that_never_ends_is_cut(ca_file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"https://127.0.0.1:{silent.getsockname()[1]}"
        opener = opener_for([place], [{"prefix": place, "allow_private": True, "ca_file": ca_file}], QUICK)
        with opener.open(f"{place}/w.tensors") as source, pytest.raises(SourceUnavailable):
            source.files()


def test_a_handshake_ends_when_the_source_is_stopped(ca_file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"https://127.0.0.1:{silent.getsockname()[1]}"
        opener = opener_for([place], [{"prefix": place, "allow_private": True, "ca_file": ca_file}])
        with opener.open(f"{place}/w.tensors") as source:
            failures: list[BaseException] = []

            def read() -> None:
                try:
                    source.files()
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=read)
            thread.start()
            silent.accept()[0].close()  # then it tries again
            waiting, _ = silent.accept()
            waiting.recv(1)  # the handshake has begun
            source.stop()
            thread.join(10)
            assert not thread.is_alive()
            waiting.close()
        assert [type(error).__name__ for error in failures] == ["LoadCancelled"]

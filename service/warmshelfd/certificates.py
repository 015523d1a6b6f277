"""The daemon's own certificate, and the authorities whose certificates callers may show.

Read from files again and again: what is new and usable serves the next connection, while those
that are open go on; what is new and unusable is told and changes nothing. Knows no caller.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from typing import Any

import grpc

from warmshelf.errors import InvalidConfig

PEM_BYTES_MAX = 1 << 20
"""Longest file; bundles of all public authorities have some 200 KiB."""

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the certificate with its chain, its key, and the authorities of callers are; "" for no authorities."""

    cert: str
    key: str
    client_ca: str = ""


@dataclass(frozen=True, slots=True)
class _Pem:
    cert: bytes
    key: bytes
    client_ca: bytes

    def __repr__(self) -> str:
        return "<PEM>"


class Certificates:
    """What the daemon shows and trusts now.

    ``_pem``, ``_seen`` and ``_bad`` are written by ``refresh`` alone, which one thread at a time calls; threads
    of gRPC read ``_configuration``, which is replaced whole.
    """

    def __init__(self, files: CertificateFiles) -> None:
        """Read the files.

        Raises:
            InvalidConfig: one cannot be read, they do not belong together, or they are not valid now.
        """
        self._files = files
        self._pem = _read_all(files)
        _prove(files, self._pem)
        self._seen = self._pem  # by the last look
        self._bad: _Pem | None = None  # told already
        self._configuration = _configuration(self._pem)

    def refresh(self) -> None:
        """Read the files again. What is new counts when two looks found the same: files are replaced one by one.

        Raises:
            InvalidConfig: what is new there cannot be used; told once. What was there before stays.
        """
        pem, before = _read_all(self._files), self._seen
        self._seen = pem
        if pem != before or pem in (self._pem, self._bad):
            return
        self._bad = pem
        _prove(self._files, pem)
        self._bad, self._pem, self._configuration = None, pem, _configuration(pem)

    def credentials(self) -> grpc.ServerCredentials:
        """Return what one address is opened with; it follows what is read later. Each address needs its own."""
        given = self._configuration

        def newest() -> Any:  # None for no change, which gRPC's types do not know
            nonlocal given
            if given is self._configuration:
                return None
            given = self._configuration
            return given

        return grpc.dynamic_ssl_server_credentials(
            given, newest, require_client_authentication=bool(self._files.client_ca)
        )


def _configuration(pem: _Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], root_certificates=pem.client_ca or None)


def _read_all(files: CertificateFiles) -> _Pem:
    return _Pem(_read(files.cert), _read(files.key), _read(files.client_ca) if files.client_ca else b"")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{path!r} cannot be read: {error.strerror}", path=path) from error
    if len(data) > PEM_BYTES_MAX:
        raise InvalidConfig(f"{path!r} has more than the {PEM_BYTES_MAX} bytes of a certificate", path=path)
    return data


def _prove(files: CertificateFiles, pem: _Pem) -> None:
    """Shake hands with ourselves, trusting this certificate alone: that takes its key, and a valid time."""
    first = _CERTIFICATE.search(_text(pem.cert))
    if first is None:
        raise InvalidConfig(f"{files.cert!r} has no certificate", path=files.cert)
    try:
        _shake_hands(_server_context(pem), _client_context(first[0]))
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or "it is no PEM"
        raise InvalidConfig(f"{files.cert!r} with {files.key!r} cannot be used: {why}", path=files.cert) from None
    if files.client_ca:
        _prove_authorities(files.client_ca, pem.client_ca)


def _prove_authorities(path: str, pem: bytes) -> None:
    try:
        _client_context(_text(pem))
    except (ssl.SSLError, ValueError):  # the latter where there is nothing at all
        raise InvalidConfig(f"{path!r} has no certificate of an authority", path=path) from None


def _text(pem: bytes) -> str:
    """Return PEM as text; comments between the parts may be in any script."""
    return pem.decode("ascii", "ignore")


def _server_context(pem: _Pem) -> ssl.SSLContext:
    """Return a context with exactly these bytes: files may change between two looks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert, key = _memory_file(pem.cert), _memory_file(pem.key)
    try:
        context.load_cert_chain(f"/proc/self/fd/{cert}", f"/proc/self/fd/{key}", password=lambda: "")
    finally:
        os.close(cert)
        os.close(key)
    return context


def _client_context(trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # whatever name a caller knows us by is its business
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=trusted)
    return context


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    for side in (*sides, *sides):  # two turns each are a whole handshake
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    for side in sides:
        side.do_handshake()  # done, or it says why not


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return fd

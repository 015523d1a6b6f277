"""An authority for tests, with certificates of every kind that a caller or a daemon may show.

Made with the ``cryptography`` library itself: what the daemon's own code reads is not made by it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    cert: bytes
    key: bytes

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write both, each in the place of what was there, and return where."""
        paths = directory / f"{name}.pem", directory / f"{name}.key"
        for path, data in zip(paths, (self.cert, self.key), strict=True):
            put(path, data)
        return paths


def put(path: Path, data: bytes) -> None:
    """Put a file in the place of another, as those do who renew certificates."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    beside.replace(path)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "an authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = self._builder(self._name, self._key, 0).add_extension(x509.BasicConstraints(True, None), True)
        self.cert = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, shift_days: int) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.timezone.utc) + shift_days * _DAY
        built = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        built = built.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return built.not_valid_before(now - _DAY).not_valid_after(now + _DAY)

    def issue(self, common_name: str, *, dns: Sequence[str] = (), uri: Sequence[str] = (), shift_days: int = 0) -> Pair:
        """Return a certificate of a day before and after now, or of so many days later."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        built = self._builder(subject, key, shift_days)
        names = [*map(x509.DNSName, dns), *map(x509.UniformResourceIdentifier, uri)]
        if names:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        encoding = serialization.Encoding.PEM
        return Pair(
            built.sign(self._key, hashes.SHA256()).public_bytes(encoding),
            key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        )


def channel(address: str, ca: bytes, pair: Pair | None = None, token: str = "") -> grpc.Channel:
    """Return a channel of gRPC's own to a daemon that knows itself as localhost."""
    credentials = grpc.ssl_channel_credentials(ca, pair.key if pair else None, pair.cert if pair else None)
    if token:
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address, credentials, options)

"""Files that make no certificate, and tokens that are none, are refused by what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from kit.authority import Authority, Pair
from warmshelf.errors import InvalidConfig
from warmshelfd.certificates import PEM_BYTES_MAX, CertificateFiles, Certificates
from warmshelfd.domain.roles import Role
from warmshelfd.identities import Identities, IdentitySettings

AUTHORITY = Authority()
GOOD, OTHER = AUTHORITY.issue("a"), AUTHORITY.issue("a")


def _locked(pair: Pair) -> bytes:
    key = serialization.load_pem_private_key(pair.key, None)
    locked = serialization.BestAvailableEncryption(b"secret")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("cert", None, "No such file"),
        ("key", None, "No such file"),
        ("ca", None, "No such file"),
        ("cert", b"", "has no certificate"),
        ("cert", GOOD.cert[:200], "has no certificate"),
        ("cert", AUTHORITY.issue("a", shift_days=-9).cert, "cannot be used"),
        ("key", OTHER.key, "KEY_VALUES_MISMATCH"),
        ("key", b"", "cannot be used"),
        ("key", _locked(GOOD), "cannot be used"),
        ("key", b"x" * (PEM_BYTES_MAX + 1), "more than"),
        ("ca", GOOD.key, "no certificate of an authority"),
        ("ca", b"\xff", "no certificate of an authority"),
        ("ca", b"", "no certificate of an authority"),
    ],
)
def test_a_file_that_cannot_serve_is_named_with_the_reason(
    tmp_path: Path, name: str, data: bytes | None, why: str
) -> None:
    paths = {each: tmp_path / f"{each}.pem" for each in ("cert", "key", "ca")}
    for path, content in zip(paths.values(), (GOOD.cert, GOOD.key, AUTHORITY.cert), strict=True):
        path.write_bytes(content)
    files = CertificateFiles(*map(str, paths.values()))
    Certificates(files)
    paths[name].unlink() if data is None else paths[name].write_bytes(data)
    with pytest.raises(InvalidConfig, match=why) as caught:
        Certificates(files)
    assert str(paths[name]) in caught.value.message


@pytest.mark.parametrize("shift_days", [-9, 9])
def test_a_certificate_counts_only_in_its_time(tmp_path: Path, shift_days: int) -> None:
    cert, key = AUTHORITY.issue("a", shift_days=shift_days).write(tmp_path, "a")
    with pytest.raises(InvalidConfig, match="expired" if shift_days < 0 else "not yet valid"):
        Certificates(CertificateFiles(str(cert), str(key)))


def rows(directory: Path, *tokens: bytes) -> list[IdentitySettings]:
    made = []
    for i, token in enumerate(tokens):
        (directory / f"{i}").write_bytes(token)
        made.append(IdentitySettings(name=f"the-{i}", token=f"file:{directory}/{i}", roles=(Role.READER,)))
    return made


@pytest.mark.parametrize(
    "token", [b"", b"fifteen-letters", b"sixteen letters or", b"sixteen-letters-\xff", b"a" * 70_000]
)
def test_a_token_that_is_none_is_refused_and_not_shown(tmp_path: Path, token: bytes) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Identities(rows(tmp_path, token))
    assert not token or token.decode("ascii", "replace") not in repr(caught.value) + repr(caught.value.details)


def test_one_token_for_two_identities_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="the-0 and the-1 have the same token"):
        Identities(rows(tmp_path, b"a-token-for-two-of-them", b"a-token-for-two-of-them\n"))


def test_every_token_is_its_identitys(tmp_path: Path) -> None:
    identities = Identities(
        rows(tmp_path, b"a-token-of-the-first", b"a-token-of-the-second\r\n", b"and/of+the~third.==")
    )
    for i, token in enumerate((b"a-token-of-the-first", b"a-token-of-the-second", b"and/of+the~third.==")):
        found = identities.by_token(token)
        assert found is not None
        assert found.name == f"the-{i}"
    assert identities.by_token(b"") is None
    assert identities.by_token(b"a-token-of-the-firs") is None

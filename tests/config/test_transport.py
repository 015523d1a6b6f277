"""Who may listen where without TLS, and who callers are: what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmshelf.errors import InvalidConfig
from warmshelfd.config import parse
from warmshelfd.domain.roles import Role
from warmshelfd.settings import Settings

TLS = ("--listen-cert-file", "/c.pem", "--listen-key-file", "/c.key")
BY_TOKEN = 'name = "a"\ntoken = "env:T"\nroles = ["reader"]'
BY_SUBJECT = 'name = "a"\nsubject = "*"\nroles = ["reader"]'


def told(*argv: str, **environ: str) -> Settings:
    settings, warnings = parse(argv, {"HOME": "/home/user", **environ})
    assert warnings == []
    return settings


def refusal(*argv: str, **environ: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        told(*argv, **environ)
    return caught.value.message


def file(directory: Path, *tables: str) -> str:
    path = directory / "warmshelfd.toml"
    path.write_text("".join(f"[[identity]]\n{table}\n" for table in tables))
    return str(path)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:///run/a.sock"])
def test_an_address_that_only_this_machine_reaches_may_be_plain(address: str) -> None:
    assert told("--listen", address).certificate_files() is None


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:a00:1]:1", "[fe80::1]:1", "node:1", "localhost.example:1"],
)
def test_any_other_address_is_refused_without_tls_unless_it_is_said(address: str) -> None:
    text = refusal("--listen", "unix:///a", "--listen", address)
    assert address in text
    assert "listen_cert_file" in text
    assert "--insecure" in text
    settings, warnings = parse(["--listen", address, "--insecure"], {"HOME": "/home/user"})
    assert settings.insecure
    assert [address in warning for warning in warnings] == [True]
    assert told("--listen", "localhost:1", WARMSHELF_INSECURE="1").insecure


def test_with_a_certificate_and_an_identity_any_address_may_be_listened_on(tmp_path: Path) -> None:
    settings = told("--listen", "0.0.0.0:1", *TLS, "--config", file(tmp_path, BY_TOKEN))
    files = settings.certificate_files()
    assert files is not None
    assert (files.cert, files.key, files.client_ca) == ("/c.pem", "/c.key", "")
    settings = told(*TLS, "--listen-client-ca-file", "/ca.pem", "--config", file(tmp_path, BY_SUBJECT))
    assert settings.identity[0].roles == (Role.READER,)


@pytest.mark.parametrize(
    ("argv", "tables", "why"),
    [
        (TLS[:2], [BY_TOKEN], "go together"),
        (TLS[2:], [BY_TOKEN], "go together"),
        (TLS, [], "nobody could call over TLS: there is no [[identity]] with a token"),
        (TLS, [BY_SUBJECT], "nobody could call"),
        ((*TLS, "--listen-client-ca-file", "/ca"), [], "with a subject or a token"),
        ((*TLS, "--insecure"), [BY_TOKEN], "insecure is for plain TCP"),
        (("--listen-client-ca-file", "/ca"), [BY_SUBJECT], "takes listen_cert_file"),
        ((), [BY_TOKEN.replace("reader", "writer")], "'reader', 'registrar' or 'operator'"),
        ((), [BY_TOKEN.replace('["reader"]', "[]")], "at least 1 item"),
        ((), [BY_TOKEN + '\nsubject = "*"'], "either by a subject or by a token"),
        ((), ['name = "a"\nroles = ["reader"]'], "either by a subject or by a token"),
        ((), [BY_SUBJECT.replace("*", "bob")], "uri:URI, dns:NAME or cn:NAME"),
        ((), [BY_SUBJECT.replace("*", "cn:")], "uri:URI, dns:NAME or cn:NAME"),
        ((), [BY_TOKEN.replace("env:T", "swordfish")], "never written here"),
        ((), [BY_TOKEN.replace('"a"', '"a b"')], "letters, digits"),
        ((), [BY_TOKEN + '\ntenat = "x"'], "is no key of it"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    tmp_path: Path, argv: tuple[str, ...], tables: list[str], why: str
) -> None:
    text = refusal(*argv, "--config", file(tmp_path, *tables))
    assert why in text
    assert "swordfish" not in text


def test_roles_of_the_nameless_are_everything_by_default_and_a_list_otherwise() -> None:
    assert told().anonymous_roles == (Role.OPERATOR,)
    assert told("--anonymous-roles", "reader", "registrar").anonymous_roles == (Role.READER, Role.REGISTRAR)
    assert told(WARMSHELF_ANONYMOUS_ROLES="reader,registrar").anonymous_roles == (Role.READER, Role.REGISTRAR)
    assert "'reader', 'registrar' or 'operator'" in refusal("--anonymous-roles", "everybody")


def test_variables_of_clients_are_none_of_the_daemons_business() -> None:
    assert told(WARMSHELF_TLS_CA="/a", WARMSHELF_TLS_CERT="/a", WARMSHELF_TLS_KEY="/a", WARMSHELF_TOKEN_FILE="/a")

"""Who callers are, as the operator says: names of certificates, and tokens, each with roles.

Tokens are named in the configuration and never written there, kept here only as hashes, and
read again so that a changed file counts. Knows no call and no connection.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from warmshelf.errors import InvalidConfig
from warmshelfd.domain.roles import Role
from warmshelfd.sources.settings import Secret, read_secret

ANY_CERTIFICATE = "*"
"""The subject that every certificate of a trusted authority has."""

TOKEN_LENGTH_MIN = 16
"""Shorter tokens can be guessed; made well, 16 characters have 96 random bits."""

ANY_TENANT = "*"
"""In place of a tenant's name: whoever calls may name one, and calls for none otherwise."""

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
"""What RFC 6750 lets a bearer token be."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]{0,63}")
_SUBJECT = re.compile(r"\*|(?:uri|dns|cn):[^\0]+")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a name has up to 64 letters, digits and ._/@:+-, first a letter or digit")
    return name


def _check_subject(subject: str) -> str:
    if not _SUBJECT.fullmatch(subject):
        raise ValueError("a subject is uri:URI, dns:NAME or cn:NAME of the certificate, or * for all of them")
    return subject.lower() if subject.startswith("dns:") else subject


class IdentitySettings(BaseModel):
    """One who may call: by a certificate or by a token."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)

    name: Annotated[str, AfterValidator(_check_name)]
    """What the log calls it."""
    subject: Annotated[str, AfterValidator(_check_subject)] | None = None
    """A name in its certificate: `uri:` or `dns:` of the alternative names, or `cn:`; `*` for every certificate."""
    token: Secret | None = None
    """Or its bearer token, as `env:NAME` or `file:/PATH`."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    """What it may do: `reader`, `registrar`, `operator`."""
    tenant: str | None = None
    """The tenant that it calls for; `*` if it may name one in each call. Default: none; such an operator may, too."""

    @model_validator(mode="after")
    def _check_one_way(self) -> IdentitySettings:
        if (self.subject is None) == (self.token is None):
            raise ValueError(f"identity {self.name}: it is known either by a subject or by a token")
        return self


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody, what they may do, and the tenant that they call for, if they do not name one in each call."""

    name: str
    roles: frozenset[Role]
    tenant: str = ""
    names_tenant: bool = False


class Identities:
    """All of them. ``_tokens`` is replaced whole by ``refresh``, whatever thread that runs on."""

    def __init__(self, settings: Sequence[IdentitySettings]) -> None:
        """Read every token.

        Raises:
            InvalidConfig: one cannot be had, is none, or is another's too. Never has its value.
        """
        self._settings = tuple(settings)
        self._tokens, problems = _read_tokens(self._settings)
        if problems:
            raise problems[0]

    def refresh(self) -> list[InvalidConfig]:
        """Read the tokens again; return what is wrong with some. A token that is not right admits nobody."""
        self._tokens, problems = _read_tokens(self._settings)
        return problems

    def by_token(self, token: bytes) -> Identity | None:
        """Return whose token it is. Takes as long for a wrong one as for a right one, and for one nearly right."""
        given, found = _hash(token), None
        for known, identity in self._tokens:
            if hmac.compare_digest(given, known):
                found = identity
        return found

    def by_subjects(self, subjects: Collection[str]) -> Identity | None:
        """Return the first identity that one of a certificate's names belongs to."""
        for row in self._settings:
            if row.subject is not None and (row.subject == ANY_CERTIFICATE or row.subject in subjects):
                return _identity(row)
        return None


_Tokens = tuple[tuple[bytes, Identity], ...]


def _read_tokens(settings: Sequence[IdentitySettings]) -> tuple[_Tokens, list[InvalidConfig]]:
    tokens: dict[bytes, Identity] = {}
    problems = []
    for row in settings:
        if row.token is None:
            continue
        try:
            known = _hash(_checked(row.name, read_secret(row.token)))
            if known in tokens:
                raise InvalidConfig(f"identities {tokens[known].name} and {row.name} have the same token")
            tokens[known] = _identity(row)
        except InvalidConfig as error:
            problems.append(error)
    return tuple(tokens.items()), problems


def _checked(name: str, token: bytes) -> bytes:
    if len(token) < TOKEN_LENGTH_MIN or not _TOKEN.fullmatch(token):
        raise InvalidConfig(
            f"the token of identity {name} is not {TOKEN_LENGTH_MIN} or more letters, digits and ._~+/-",
            identity=name,
            length_count=len(token),
        )
    return token


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _identity(row: IdentitySettings) -> Identity:
    own = "" if row.tenant in (None, ANY_TENANT) else row.tenant
    return identity_of(row.name, row.roles, own or "", is_any=row.tenant == ANY_TENANT)


def identity_of(name: str, roles: Collection[Role], tenant: str = "", *, is_any: bool = False) -> Identity:
    """Return somebody. An operator of no tenant may name one as well."""
    return Identity(name, frozenset(roles), tenant, is_any or (not tenant and Role.OPERATOR in roles))

"""The door: who calls, and whether they may.

Every call is looked at when it begins, and only then: a stream that is open goes on, whatever becomes of
the caller's token or certificate. Knows gRPC's words for a peer; does not know what a call does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from warmshelf._security import TENANT_METADATA_KEY
from warmshelf.errors import InvalidRequest, PermissionDenied, Unauthenticated
from warmshelfd.domain.roles import CALLS, EVERYBODY, OF_THE_NODE, Role, may_call
from warmshelfd.identities import Identities, Identity, identity_of

_KINDS = {"peer_uri": "uri", "peer_dns": "dns", "x509_common_name": "cn"}
"""What gRPC calls the names in a certificate, and what the configuration does."""

_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and for which tenant; "" where they have no name, or call for none."""

    name: str
    tenant: str


_A_PROBE = Caller("", "")


class Admission:
    """Lets callers in by their token, else by their certificate, else as somebody without a name.

    The last is for Unix sockets and for plain TCP: where TLS is spoken, everybody has an identity.
    """

    def __init__(
        self,
        identities: Identities,
        anonymous_roles: Collection[Role],
        *,
        has_tls: bool,
        tenants: Collection[str] = (),
    ) -> None:
        """``has_tls`` says whether some address speaks TLS: asking gRPC about each call is not free."""
        self._identities = identities
        self._tenants = frozenset(tenants)
        self._has_tls = has_tls
        self._anonymous = identity_of("", anonymous_roles)

    def admit(self, call: str, context: Any) -> Caller:
        """Return who calls.

        Raises:
            Unauthenticated: it does not say who it is, or not truly.
            PermissionDenied: it has not the role, or names a tenant that it may not call for.
            InvalidRequest: it may name a tenant, and names none that there is.
        """
        if CALLS.get(call, frozenset()) is EVERYBODY:
            return _A_PROBE
        identity = self._identify(context)
        if not may_call(call, identity.roles):
            who = f"identity {identity.name}" if identity.name else "a caller without an identity"
            raise PermissionDenied(
                f"{who} has {_listed(identity.roles)}; {call} takes {_listed(CALLS.get(call) or ())}",
                identity=identity.name,
                call=call,
            )
        return Caller(identity.name, self._tenant(call, identity, context.invocation_metadata()))

    def _tenant(self, call: str, identity: Identity, metadata: Any) -> str:
        """Return whom an admitted caller calls for. Who may not choose does not learn which tenants there are."""
        named: list[str] = [value for key, value in metadata or () if key == TENANT_METADATA_KEY]
        own = identity.tenant
        if (own or named) and call in OF_THE_NODE:
            raise PermissionDenied(f"{call} is for callers of no tenant", identity=identity.name, call=call)
        if not identity.names_tenant and any(name != own for name in named):
            raise PermissionDenied("the caller may not name a tenant to call for", identity=identity.name, call=call)
        if not named or not identity.names_tenant:
            return own
        if len(named) > 1 or named[0] not in self._tenants:
            raise InvalidRequest(f"there is no tenant {named[0][:64]!a}", field=TENANT_METADATA_KEY)
        return named[0]

    def _identify(self, context: Any) -> Identity:
        auth = context.auth_context() if self._has_tls else {}
        is_tls = auth.get("transport_security_type") == [b"ssl"]
        tokens = list(_tokens(context.invocation_metadata()))
        if tokens:
            return self._by_token(tokens, may_be_read=not is_tls and not context.peer().startswith("unix:"))
        if not is_tls:
            return self._anonymous
        subjects = subjects_of(auth)
        if not subjects:
            raise Unauthenticated("the call has no token")
        identity = self._identities.by_subjects(subjects)
        if identity is None:
            raise PermissionDenied(f"the certificate is no identity's; its names are {', '.join(sorted(subjects))}")
        return identity

    def _by_token(self, tokens: list[str], *, may_be_read: bool) -> Identity:
        if may_be_read:
            raise Unauthenticated("a token came over plain TCP, where others may read it: replace it, and use TLS")
        identity = self._identities.by_token(tokens[0].encode("utf-8", "surrogateescape")) if len(tokens) == 1 else None
        if identity is None:
            raise Unauthenticated("the token is no identity's")
        return identity


def subjects_of(auth: Mapping[str, Collection[bytes]]) -> set[str]:
    """Return the names in the certificate of a peer, as the configuration writes them."""
    subjects = set()
    for key, kind in _KINDS.items():
        for value in auth.get(key, ()):
            name = value.decode("utf-8", "replace")
            subjects.add(f"{kind}:{name.lower() if kind == 'dns' else name}")
    return subjects


def _tokens(metadata: Any) -> Iterator[str]:
    """Yield what is in each authorization header; "" for one that holds no bearer token."""
    for key, value in metadata or ():
        if key == "authorization":
            yield value[len(_SCHEME) :].strip() if value[: len(_SCHEME)].lower() == _SCHEME else ""


def _listed(roles: Collection[Role]) -> str:
    return ", ".join(sorted(role.value for role in roles)) or "no role"

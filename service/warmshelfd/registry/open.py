"""Which registry a URI means. The only place that knows every kind there is."""

from __future__ import annotations

from collections.abc import Callable

from warmshelf.errors import InvalidConfig
from warmshelfd.registry.base import Registry
from warmshelfd.registry.claims import ClaimStore
from warmshelfd.registry.redis import RedisRegistry
from warmshelfd.registry.redis_claims import RedisClaims
from warmshelfd.registry.redis_link import Credentials, Link, space_of
from warmshelfd.registry.redis_place import is_redis, parse_place
from warmshelfd.registry.redis_residents import NODES, RedisResidents
from warmshelfd.registry.redis_store import REGISTRATIONS
from warmshelfd.registry.residents import ResidentStore
from warmshelfd.registry.sqlite import SqliteRegistry

_SQLITE = "sqlite://"


def open_registry(
    uri: str,
    *,
    copy_path: str = "",
    credentials: Credentials = lambda: ("", b""),
    ca_file: str | None = None,
    tenant: str = "",
    count: Callable[[str], None] = lambda _: None,
) -> Registry:
    """Open the registry that the URI names; one in Redis has a copy in the file ``copy_path``.

    What it keeps there is ``tenant``'s, or nobody's. ``count`` is told one word for everything that goes wrong
    with Redis, on any thread.

    Raises:
        InvalidConfig: no registry can be opened there; says why.
        DaemonInUse: another daemon has it.
    """
    if not is_redis(uri):
        return SqliteRegistry(sqlite_path(uri))
    link = Link(parse_place(uri), credentials, ca_file, REGISTRATIONS, space_of(tenant))
    return RedisRegistry(SqliteRegistry(copy_path), link, count)


def open_residents(
    uri: str, *, credentials: Credentials, ca_file: str | None, tenant: str = ""
) -> ResidentStore | None:
    """Return where nodes that share the registry tell each other what they have resident; None if none is shared."""
    if not is_redis(uri):
        return None
    return RedisResidents(Link(parse_place(uri), credentials, ca_file, NODES, space_of(tenant)))


def open_claims(uri: str, *, credentials: Credentials, ca_file: str | None, tenant: str = "") -> ClaimStore | None:
    """Return where those nodes tell each other which sources they read; None as above."""
    if not is_redis(uri):
        return None
    return RedisClaims(Link(parse_place(uri), credentials, ca_file, NODES, space_of(tenant)))


def check_registry(uri: str) -> None:
    """Return if the URI names a registry.

    Raises:
        InvalidConfig: it does not. Shows no more of it than its scheme.
    """
    if is_redis(uri):
        parse_place(uri)
    else:
        sqlite_path(uri)


def sqlite_path(uri: str) -> str:
    """Return the file that a ``sqlite:///`` URI names: its path as it stands, nothing is decoded.

    Raises:
        InvalidConfig: it is another URI. The text shows no more than its scheme: the
            rest may hold a password.
    """
    path = uri[len(_SQLITE) :]
    if not uri.startswith(_SQLITE):
        scheme = uri.partition(":")[0][:20]
        raise InvalidConfig(
            f"a registry of scheme {scheme!r} is not offered by this release: sqlite:///ABSOLUTE/PATH and "
            "redis://HOST:PORT/DB are"
        )
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidConfig("the registry's path must be an absolute one of a file, as in sqlite:///var/lib/x.sqlite")
    return path

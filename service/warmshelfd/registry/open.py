"""Which registry a URI means. The only place that knows every kind there is."""

from __future__ import annotations

from warmshelf.errors import InvalidConfig
from warmshelfd.registry.base import Registry
from warmshelfd.registry.sqlite import SqliteRegistry

_SQLITE = "sqlite://"


def open_registry(uri: str) -> Registry:
    """Open the registry that the URI names.

    Raises:
        InvalidConfig: no registry can be opened there; says why.
        DaemonInUse: another daemon has it.
    """
    return SqliteRegistry(sqlite_path(uri))


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
            f"a registry of scheme {scheme!r} is not offered by this release: sqlite:///ABSOLUTE/PATH is"
        )
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidConfig("the registry's path must be an absolute one of a file, as in sqlite:///var/lib/x.sqlite")
    return path

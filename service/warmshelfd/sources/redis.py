"""Redis as a source: artifacts in our own layout, and models that tensorizer's ``to_redis`` wrote.

Default deny: only what lies under an allowed prefix is asked for, at the server that
the prefix names. Credentials come from the operator's tables alone. Keys are always
made from the name: nothing is listed, and nothing is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from warmshelf.errors import InvalidSpec, MalformedArtifact, SourceNotAllowed, SourceNotFound
from warmshelf.redis_layout import manifest_key
from warmshelf.redis_uri import RedisUri, parse_prefix, parse_redis_uri
from warmshelfd.redis_wire import Patience, RedisAwayError, RedisWire
from warmshelfd.sources.base import OpenSource, SourceOpener
from warmshelfd.sources.redis_chunked import ChunkedSource
from warmshelfd.sources.redis_pool import Access, RedisPool, settings_of
from warmshelfd.sources.redis_tensorizer import FindPieces, TensorizerSource, front_key
from warmshelfd.sources.settings import SourceSettings, is_below, settings_for

_TYPES = {b"hash": "warmshelf", b"string": "tensorizer"}


class RedisOpener(SourceOpener):
    """Opens what lies in Redis under the allowed prefixes, over one of the two schemes."""

    def __init__(
        self,
        scheme: str,
        allowed: Iterable[str],
        settings: Iterable[SourceSettings],
        find_pieces: FindPieces,
        patience: Patience | None = None,
    ) -> None:
        """Allow each of these prefixes of this scheme, and everything below it.

        Raises:
            InvalidSpec: a prefix, allowed or of settings, is none.
        """
        self.scheme = scheme
        self._allowed = [parse_prefix(text).path for text in allowed]
        self._settings = settings_of(scheme, settings)
        self._find_pieces = find_pieces
        self._patience = patience or Patience()

    def canonical(self, uri: str) -> str:
        """Return the URI with host in lower case, port and database."""
        return str(parse_redis_uri(uri))

    def place(self, uri: str) -> str:
        """Return the server that the URI is of, if it is allowed."""
        parsed = parse_redis_uri(uri)
        return f"{self.scheme}://{parsed.host}:{parsed.port}" if self._allows(parsed) else ""

    def open(self, uri: str, revision: str = "") -> OpenSource:
        """Look at what is there."""
        parsed = parse_redis_uri(uri)
        if revision:
            raise InvalidSpec(f"{parsed}: what is in Redis has no revisions", revision=revision)
        if not self._allows(parsed):
            # Nothing here depends on what is there: that is not for the caller to know.
            raise SourceNotAllowed(f"{parsed} is outside the allowed prefixes", uri=str(parsed))
        access = Access.of(settings_for(parsed.path, self._settings))
        pool = RedisPool(parsed, access, self._patience)
        try:
            if (parsed.layout or _seen_layout(parsed, pool)) == "tensorizer":
                return TensorizerSource(parsed, pool, self._find_pieces)
            return ChunkedSource(parsed, pool)
        except BaseException:
            pool.close()
            raise

    def _allows(self, uri: RedisUri) -> bool:
        return any(is_below(uri.path, prefix) for prefix in self._allowed)


def _seen_layout(uri: RedisUri, pool: RedisPool) -> str:
    """Return who wrote what is there; where both did, ours counts."""
    keys = {"warmshelf": manifest_key(uri.name), "tensorizer": front_key(uri.name)}
    types = pool.run(lambda wire: _types(wire, list(keys.values())))
    for layout, found in zip(keys, types, strict=True):
        if _TYPES.get(found) == layout:
            return layout
        if found != b"none":
            key = keys[layout].decode()
            raise MalformedArtifact(f"{uri}: {key} is a {found.decode('latin-1')}", uri=str(uri), key=key)
    raise SourceNotFound(f"{uri}: nothing is there", uri=str(uri))


def _types(wire: RedisWire, keys: Sequence[bytes]) -> list[bytes]:
    wire.send([b"TYPE", key] for key in keys)
    found = [wire.answer() for _ in keys]
    if not all(isinstance(one, bytes) for one in found):
        raise RedisAwayError("answered something else than was asked")
    return [one for one in found if isinstance(one, bytes)]

"""Claims in Redis: a key for each load that a node has claimed, which expires. Blocking; knows no thread."""

from __future__ import annotations

from warmshelfd.redis_wire import Command, RedisWire, Reply
from warmshelfd.registry.claims import VALUE_BYTES_MAX, Claim, ClaimStore, from_value
from warmshelfd.registry.redis_errand import Errand
from warmshelfd.registry.redis_link import Link, exchange


class RedisClaims(ClaimStore):
    """The exchanges, on a connection of their own."""

    def __init__(self, link: Link) -> None:
        self._errand = Errand(link)
        self._space = link.space

    def hold(self, name: str, mine: Claim, life_seconds: float) -> Claim:
        """As the interface says."""
        key, life = self._key(name), [b"PX", b"%d" % max(1, round(life_seconds * 1000))]
        take = [b"SET", key, mine.to_value(), b"NX", *life]
        standing = from_value(self._asked([take, _get(key)])[1])
        if standing.is_of(mine) and standing != mine:
            self._asked([[b"SET", key, mine.to_value(), b"XX", *life]])
            return mine
        return standing

    def look(self, name: str) -> Claim | None:
        """As the interface says."""
        (value,) = self._asked([_get(self._key(name))])
        return from_value(value) if value != b"" else None

    def drop(self, name: str, mine: Claim) -> None:
        """As the interface says. Should it run out in between, somebody else's goes, and a source is read once more."""
        (value,) = self._asked([_get(self._key(name))])
        if value != b"" and from_value(value).is_of(mine):
            self._asked([[b"DEL", self._key(name)]])

    def close(self) -> None:
        """As the interface says."""
        self._errand.close()

    def _key(self, name: str) -> bytes:
        return self._space + b":load:" + name.encode("ascii")

    def _asked(self, commands: list[Command]) -> list[Reply]:
        def ask(wire: RedisWire) -> list[Reply]:
            return exchange(wire, commands, VALUE_BYTES_MAX + 1)

        return self._errand.run(ask)


def _get(key: bytes) -> Command:
    return [b"GETRANGE", key, b"0", b"%d" % VALUE_BYTES_MAX]

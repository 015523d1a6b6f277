"""A connection to the registry's server for one errand: made when it is needed, given up after any fault.

Knows no keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from warmshelf.errors import InvalidConfig
from warmshelfd.redis_wire import RedisAwayError, RedisRefusedError, RedisWire
from warmshelfd.registry.redis_link import Link
from warmshelfd.registry.residents import StoreAwayError

_T = TypeVar("_T")


class Errand:
    """The connection. Of one thread."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._wire: RedisWire | None = None

    def run(self, work: Callable[[RedisWire], _T]) -> _T:
        """Do something on the connection.

        Raises:
            StoreAwayError: the server is away or refuses.
        """
        try:
            if self._wire is None:
                self._wire = self._link.connect()
            return work(self._wire)
        except RedisRefusedError as error:
            self.close()  # perhaps it is no master any more
            raise StoreAwayError(error.code.lower()) from None
        except (RedisAwayError, InvalidConfig, OSError):
            self.close()
            raise StoreAwayError("away") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

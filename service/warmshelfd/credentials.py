"""What the daemon proves itself with and knows callers by, kept as new as its files.

Reads in a thread, for as long as the daemon serves; says once what is wrong with what is new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from warmshelf.errors import InvalidConfig
from warmshelfd.certificates import Certificates
from warmshelfd.identities import Identities
from warmshelfd.metrics import Metrics
from warmshelfd.settings import Settings

_log = logging.getLogger(__name__)


class Credentials:
    """Certificates and identities of one daemon. ``_told`` belongs to the one thread at a time that refreshes."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Read everything.

        Raises:
            InvalidConfig: something of it cannot be used.
        """
        files = settings.certificate_files()
        self.certificates = Certificates(files) if files else None
        self.identities = Identities(settings.identity)
        self._seconds = settings.credentials_seconds
        self._metrics = metrics
        self._told: frozenset[str] = frozenset()

    async def follow(self) -> None:
        """Take up what changes, for ever."""
        while True:
            await asyncio.sleep(self._seconds)
            await asyncio.to_thread(self._refresh)

    def _refresh(self) -> None:
        problems = self.identities.refresh()
        if self.certificates is not None:
            problems += _problem_of(self.certificates.refresh)
        for problem in problems:
            if problem.message not in self._told:
                self._metrics.credentials_refused()
                _log.error("new credentials are not taken: %s", problem.message)
        self._told = frozenset(problem.message for problem in problems)


def _problem_of(refresh: Callable[[], None]) -> list[InvalidConfig]:
    try:
        refresh()
    except InvalidConfig as error:
        return [error]
    return []

"""How many other nodes load from this one at once. Event loop only; knows no bytes."""

from __future__ import annotations

from warmshelf.errors import LeaseLost, TooManyStreams
from warmshelfd.domain.leases import LeaseRecord
from warmshelfd.leasing import Leasing
from warmshelfd.metrics import Metrics
from warmshelfd.sources.neighbour import UPLOAD_REASON


class Uploads:
    """The leases on which other nodes read. A lease that has ended is none any more; nobody has to say so."""

    def __init__(self, leasing: Leasing, uploads_max: int, metrics: Metrics) -> None:
        self._leasing = leasing
        self._uploads_max = uploads_max
        self._metrics = metrics
        self._leases: set[tuple[str, str]] = set()  # by session and lease

    def leased(self, session_id: str, lease_id: str, reason: str = "") -> LeaseRecord:
        """Return the lease that somebody reads on.

        Raises:
            LeaseLost: it has ended.
            TooManyStreams: another node reads for the first time, while as many do as may.
        """
        record = self._leasing.leased(session_id, lease_id)
        if reason == UPLOAD_REASON and (session_id, lease_id) not in self._leases:
            self._leases = {one for one in self._leases if self._is_live(*one)}
            if len(self._leases) >= self._uploads_max:
                self._metrics.upload("refused")
                raise TooManyStreams(
                    f"{len(self._leases)} other nodes load from this one", stream_count=len(self._leases)
                )
            self._metrics.upload("begun")
            self._leases.add((session_id, lease_id))
        return record

    def _is_live(self, session_id: str, lease_id: str) -> bool:
        try:
            self._leasing.leased(session_id, lease_id)
        except LeaseLost:
            return False
        return True

"""The operators' pages: the status, metrics, and whether the daemon has started, is ready, is alive.

Pages are made in the HTTP server's threads. What belongs to the event loop is asked
of it; if it does not answer in time, the page says what was so before.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TypeVar

from warmshelfd import statusview
from warmshelfd.http import Answer, Asked, Heartbeat, HttpServer, cannot_be_rebound, yes_or_no
from warmshelfd.metrics import Metrics
from warmshelfd.observing import stock
from warmshelfd.options import Listen
from warmshelfd.shelf import Shelf
from warmshelfd.statuspage import Place, look
from warmshelfd.statusrows import Findings, Status, TenantRow, Wanted, wanted_by
from warmshelfd.stock import sum_of
from warmshelfd.upkeep import Upkeep

T = TypeVar("T")

_LOOP_SECONDS = 1.0
"""How long a page waits for the event loop; a scrape has ten."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What belongs to one tenant, or to none; ``share_bytes`` says what it can always have."""

    shelf: Shelf
    upkeep: Upkeep
    share_bytes: Callable[[], int]


class Operating:
    """The pages of one daemon, if it has an address for them. What ``kept`` has for "" belongs to no tenant.

    ``started`` is set by the event loop once every address is listened on; ``address`` is
    the pages' own, once they are served. ``findings`` may be set to what tells of the node.
    """

    def __init__(self, listen: Listen | None, metrics: Metrics, kept: Mapping[str, Kept], stuck_seconds: float) -> None:
        self.started = False
        self.address = ""
        self.findings: Findings = tuple
        self._listen = listen
        self._metrics = metrics
        self._kept = kept
        self._heartbeat = Heartbeat(stuck_seconds)
        self._start_time = time.monotonic()
        self._own_names = {socket.gethostname().lower(), listen.host.lower() if listen else ""}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve the pages for as long as the context lasts. On the event loop.

        Raises:
            DaemonInUse, InvalidConfig: the address cannot be had.
        """
        if self._listen is None:
            yield
            return
        loop = asyncio.get_running_loop()
        pages = {
            "/": lambda asked: self._show_status(loop, asked, statusview.as_html),
            "/status.json": lambda asked: self._show_status(loop, asked, statusview.as_json),
            "/metrics": lambda asked: self._show_metrics(loop, asked.accept),
            "/startupz": lambda _: yes_or_no(self.started),
            "/readyz": lambda _: yes_or_no(self.is_ready),
            "/livez": lambda _: yes_or_no(self._heartbeat.alive),
        }
        server = HttpServer(self._listen, pages)
        self.address = server.address
        beating = loop.create_task(self._heartbeat.keep_beating())
        server.start()
        try:
            yield
        finally:
            beating.cancel()
            server.stop()

    @property
    def is_ready(self) -> bool:
        """Whether the preload has been tried. Nothing but stopping takes it back."""
        every = self._kept.values()
        return self.started and all(one.upkeep.preload_tried.is_set() and not one.shelf.draining for one in every)

    def _show_metrics(self, loop: asyncio.AbstractEventLoop, accept: str) -> Answer:
        _on_loop(loop, self._show_stock)
        content_type, text = self._metrics.render(accept, self._heartbeat.age_seconds)
        return Answer(HTTPStatus.OK, text, content_type)

    def _show_stock(self) -> None:
        stocks = {tenant: stock(kept.shelf) for tenant, kept in self._kept.items()}
        self._metrics.show(sum_of(list(stocks.values())))
        for tenant, kept in self._kept.items():
            if tenant:
                quota_bytes = kept.shelf.residency.arena.budget_bytes
                self._metrics.show_tenant(tenant, stocks[tenant], kept.share_bytes(), quota_bytes)

    def _show_status(
        self, loop: asyncio.AbstractEventLoop, asked: Asked, render: Callable[[Status, Wanted], Answer]
    ) -> Answer:
        if not cannot_be_rebound(asked.host, self._own_names):
            return Answer(HTTPStatus.MISDIRECTED_REQUEST, b"Ask by number, by localhost, or by this host's own name\n")
        wanted = wanted_by(asked.query)
        status = _on_loop(loop, lambda: self._look(wanted))
        if status is None:
            age = self._heartbeat.age_seconds
            text = f"The event loop does not answer; it turned {age:.1f} s ago\n"
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, text.encode())
        return render(status, wanted)

    def _look(self, wanted: Wanted) -> Status:
        uptime_seconds = time.monotonic() - self._start_time
        tenants = [_row(tenant, kept) for tenant, kept in self._kept.items() if tenant]
        place = Place(self.is_ready, uptime_seconds, self.findings(), tenants)
        wanted = wanted if wanted.tenant in self._kept else replace(wanted, tenant="")
        return look(self._kept[wanted.tenant].shelf, wanted, place)


def _row(tenant: str, kept: Kept) -> TenantRow:
    arena = kept.shelf.residency.arena
    usage = arena.usage()
    used_bytes = usage.resident_bytes + usage.reserved_bytes + usage.unnamed_bytes
    return TenantRow(tenant, used_bytes, kept.share_bytes(), arena.budget_bytes)


def _on_loop(loop: asyncio.AbstractEventLoop, look: Callable[[], T]) -> T | None:
    """Return what something on the event loop gives; None if the loop does not come to it in time, or has ended."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(look())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
            found.set_exception(error)

    try:
        loop.call_soon_threadsafe(run)
        return found.result(_LOOP_SECONDS)
    except (RuntimeError, FutureTimeoutError):
        return None

"""The operators' pages: metrics, and whether the daemon has started, is ready, is alive.

Pages are made in the HTTP server's threads. What belongs to the event loop is asked
of it; if it does not answer in time, the page says what was so before.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from warmshelfd.http import Answer, Heartbeat, HttpServer, yes_or_no
from warmshelfd.metrics import Metrics
from warmshelfd.observing import stock
from warmshelfd.options import Listen
from warmshelfd.shelf import Shelf
from warmshelfd.upkeep import Upkeep

_LOOP_SECONDS = 1.0
"""How long a page waits for the event loop; a scrape has ten."""


class Operating:
    """The pages of one daemon, if it has an address for them.

    ``started`` is set by the event loop once every address is listened on; ``address`` is
    the pages' own, once they are served.
    """

    def __init__(
        self, listen: Listen | None, metrics: Metrics, shelf: Shelf, upkeep: Upkeep, stuck_seconds: float
    ) -> None:
        self.started = False
        self.address = ""
        self._listen = listen
        self._metrics = metrics
        self._shelf = shelf
        self._upkeep = upkeep
        self._heartbeat = Heartbeat(stuck_seconds)

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
            "/metrics": lambda accept: self._show_metrics(loop, accept),
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
        return self.started and self._upkeep.preloaded and not self._shelf.draining

    def _show_metrics(self, loop: asyncio.AbstractEventLoop, accept: str) -> Answer:
        shown = threading.Event()

        def show() -> None:
            self._metrics.show(stock(self._shelf))
            shown.set()

        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(show)
            shown.wait(_LOOP_SECONDS)
        content_type, text = self._metrics.render(accept, self._heartbeat.age_seconds)
        return Answer(HTTPStatus.OK, text, content_type)

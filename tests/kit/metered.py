"""A web server's file that is counted and can be held back, for those that would all read it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from kit.web import Asked, Handler
from kit.web_faults import FaultOf

PIECE_BYTES = 64 << 10


@dataclass
class Metered(FaultOf):
    """Serves well, counts what it sends, and sends no more than so many bytes before it may ``flow``."""

    held_at_bytes: int = 1 << 60
    sent_bytes: int = 0
    flow: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards the count

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        said = {"Content-Range": f"bytes {first}-{last}/{len(data)}", **handler.validators(data)}
        handler.head(206, {"Content-Length": str(last + 1 - first), **said})
        for begin in range(first, last + 1, PIECE_BYTES):
            piece = data[begin : min(begin + PIECE_BYTES, last + 1)]
            while self.sent_bytes + len(piece) > self.held_at_bytes and not self.flow.wait(0.02):
                if handler.web.stopping.is_set():
                    return True
            with self._lock:
                self.sent_bytes += len(piece)
            handler.wfile.write(piece)
        return True

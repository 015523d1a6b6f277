"""What can be wrong with a web server, each a small class that answers in its place."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch

from kit.web import Asked, Handler


@dataclass
class FaultOf:
    """A fault of the files whose name fits, in some of the requests for them.

    ``after`` requests are served well before it begins, and it ends after ``times``.
    """

    name: str = "model.safetensors"
    after: int = 0
    times: int = 1 << 30
    seen: int = field(default=0, init=False)

    def __call__(self, handler: Handler, asked: Asked) -> bool:
        if not fnmatch(asked.name, self.name):
            return False
        self.seen += 1
        if not self.after < self.seen <= self.after + self.times:
            return False
        return self.answer(handler, asked)

    def answer(self, handler: Handler, asked: Asked) -> bool:
        raise NotImplementedError

    def data(self, handler: Handler, asked: Asked) -> tuple[bytes, int, int]:
        """Return the file, and the range that is asked for."""
        data = handler.web.files[asked.path.partition("?")[0]]
        first, last = asked.range or (0, len(data) - 1)
        return data, first, min(last, len(data) - 1)


@dataclass
class Stall(FaultOf):
    """Sends the head and half of the body, and no more."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        length = last + 1 - first
        handler.head(
            206,
            {
                "Content-Length": str(length),
                "Content-Range": f"bytes {first}-{last}/{len(data)}",
                **handler.validators(data),
            },
        )
        handler.wfile.write(data[first : first + length // 2])
        handler.wfile.flush()
        handler.web.stopping.wait()
        handler.close_connection = True
        return True


@dataclass
class Silent(FaultOf):
    """Takes the request and says nothing."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        handler.web.stopping.wait()
        handler.close_connection = True
        return True


@dataclass
class Drip(FaultOf):
    """Sends one byte every 50 ms: no silence is ever long."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        handler.head(
            206,
            {
                "Content-Length": str(last + 1 - first),
                "Content-Range": f"bytes {first}-{last}/{len(data)}",
                **handler.validators(data),
            },
        )
        for index in range(first, last + 1):
            handler.wfile.write(data[index : index + 1])
            handler.wfile.flush()
            if handler.web.stopping.wait(0.05):
                break
        handler.close_connection = True
        return True


@dataclass
class DripHead(FaultOf):
    """Sends a head that never ends, a byte every 50 ms."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\nX-Slow: ")
        while not handler.web.stopping.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()
        handler.close_connection = True
        return True


@dataclass
class Break(FaultOf):
    """Ends the connection after half of the body."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        length = last + 1 - first
        handler.head(
            206,
            {
                "Content-Length": str(length),
                "Content-Range": f"bytes {first}-{last}/{len(data)}",
                **handler.validators(data),
            },
        )
        handler.wfile.write(data[first : first + length // 2])
        handler.wfile.flush()
        handler.close_connection = True
        return True


@dataclass
class Truncate(FaultOf):
    """Says that the file is shorter than it was, by cutting it."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        half = data[: len(data) // 2]
        if first >= len(half):
            handler.answer(416, b"", {"Content-Range": f"bytes */{len(half)}", **handler.validators(half)})
        else:
            handler.answer_range(half, first, min(last, len(half) - 1))
        return True


@dataclass
class Flip(FaultOf):
    """Turns one bit of every body over, and says that nothing changed."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        body = bytearray(data[first : last + 1])
        body[-1] ^= 1
        said = {"Content-Range": f"bytes {first}-{last}/{len(data)}", **handler.validators(data)}
        handler.answer(206, bytes(body), said)
        return True


@dataclass
class ChangeEtag(FaultOf):
    """Sends the range, of another version."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        handler.answer_range(data, first, last, {"ETag": '"another"'})
        return True


@dataclass
class ChangeFile(FaultOf):
    """Puts another file of the same length in place, and serves that as a good server does."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        path = asked.path.partition("?")[0]
        handler.web.files[path] = handler.web.files[path][:-1] + b"?"
        return False


@dataclass
class IgnoreRange(FaultOf):
    """Sends the whole file, whatever is asked for."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, _, _ = self.data(handler, asked)
        handler.answer(200, data, handler.validators(data))
        return True


@dataclass
class EarlierRange(FaultOf):
    """Sends as many bytes from 16 bytes further back, and says so."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        handler.answer_range(data, max(0, first - 16), max(0, first - 16) + last - first)
        return True


@dataclass
class RangeAsWhole(FaultOf):
    """Sends a part under the status of the whole."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        said = {"Content-Range": f"bytes {first}-{last}/{len(data)}", **handler.validators(data)}
        handler.answer(200, data[first : last + 1], said)
        return True


@dataclass
class LieAboutLength(FaultOf):
    """Says that a range's body is one byte longer or shorter than it is."""

    by: int = 1

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        body = data[first : last + 1]
        handler.answer_range(data, first, last, {"Content-Length": str(len(body) + self.by)})
        handler.close_connection = True
        return True


@dataclass
class ChunkedTooLong(FaultOf):
    """Sends a range in chunks, without a length, and a byte more than the range has."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        handler.head(
            206,
            {
                "Transfer-Encoding": "chunked",
                "Content-Range": f"bytes {first}-{last}/{len(data)}",
                **handler.validators(data),
            },
        )
        body = data[first : last + 1] + b"!"
        handler.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        return True


@dataclass
class GzipAnyway(FaultOf):
    """Packs what it sends, though plain bytes are asked for."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        body = gzip.compress(bytes(last + 1 - first))
        said = {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
        handler.head(206, {"Content-Range": f"bytes {first}-{last}/{len(data)}", **handler.validators(data), **said})
        handler.wfile.write(body)
        return True


@dataclass
class Status(FaultOf):
    """Answers with a status and a body that nobody should read."""

    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)

    def answer(self, handler: Handler, asked: Asked) -> bool:
        handler.answer(self.status, b"?" * 1000, self.headers)
        return True


@dataclass
class Redirect(FaultOf):
    """Sends elsewhere: to what ``to`` makes of the path."""

    to: Callable[[str], str] = str
    status: int = 302

    def answer(self, handler: Handler, asked: Asked) -> bool:
        handler.answer(self.status, b"moved", {"Location": self.to(asked.path)})
        return True


@dataclass
class NoValidators(FaultOf):
    """Sends ranges without ETag and date."""

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        handler.answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})
        return True


@dataclass
class Slow(FaultOf):
    """Serves well after a while."""

    seconds: float = 0.2

    def answer(self, handler: Handler, asked: Asked) -> bool:
        time.sleep(self.seconds)
        return False

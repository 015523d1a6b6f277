"""How the log is written: one line for each thing that happens, on standard error.

JSON for machines, aligned text for people. Loggers of the standard library, which
modules and libraries use, come out the same way. A line is dropped rather than
waited for: whoever forgets to read our standard error must not stop the event loop.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

import structlog

_PIECE_BYTES = 4096
"""What a pipe takes without blocking if it says that it takes anything: PIPE_BUF of Linux."""


class LogFormat(Enum):
    """How lines look."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


class LineHandler(logging.Handler):
    """Writes lines to a file descriptor, and never waits for it."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.on_lost: Callable[[], None] = lambda: None  # told of each line that was dropped
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._torn = False  # the last line has no end; guarded, as all writing, by the handler's lock

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or drop it."""
        line = self.format(record).encode(errors="backslashreplace") + b"\n"
        if not self._write(b"\n" + line if self._torn else line):
            self.on_lost()

    def _write(self, line: bytes) -> bool:
        for start in range(0, len(line), _PIECE_BYTES):
            if not self._poll.poll(0):
                self._torn = self._torn or start > 0
                return False
            with suppress(OSError):  # nobody reads any more
                os.write(self._fd, line[start : start + _PIECE_BYTES])
        self._torn = False
        return True


def set_up_log(log_format: LogFormat) -> LineHandler:
    """Send every logger's lines to standard error; return what writes them."""
    fd = sys.stderr.fileno()
    as_text = log_format is LogFormat.TEXT or (log_format is LogFormat.AUTO and os.isatty(fd))
    handler = LineHandler(fd)
    handler.setFormatter(_formatter(_text(fd) if as_text else structlog.processors.JSONRenderer()))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    structlog.configure(
        processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    return handler


def _formatter(renderer: Any) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", key="time"),
            structlog.processors.format_exc_info,  # as text: a traceback with the values of locals may hold secrets
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            renderer,
        ]
    )


def _text(fd: int) -> Any:
    plain = structlog.dev.plain_traceback
    return structlog.dev.ConsoleRenderer(colors=os.isatty(fd), timestamp_key="time", exception_formatter=plain)

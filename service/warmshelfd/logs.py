"""How the log is written: one line for each thing that happens, on standard error.

JSON for machines, aligned text for people. Loggers of the standard library, which
modules and libraries use, come out the same way as structlog's; those are for lines
with fields, and are several times faster. A line is dropped rather than waited for:
whoever forgets to read our standard error must not stop the event loop.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import structlog

_PIECE_BYTES = 4096
"""What a pipe takes without blocking if it says that it takes anything: PIPE_BUF of Linux."""


_TALKATIVE = ("httpcore", "httpcore2", "httpx", "httpx2", "urllib3")
"""Loggers of libraries that write every URL at INFO or below, also those that are signed."""


class LogFormat(Enum):
    """How lines look."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


class LineWriter:
    """Writes lines to a file descriptor from any thread, and never waits for it.

    ``on_lost`` is told of each line that was dropped.
    """

    def __init__(self, fd: int) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._lock = threading.Lock()
        self._torn = False  # the last line has no end; guarded by the lock, as all writing

    def write(self, text: str) -> None:
        """Write one line, or drop it."""
        line = text.encode(errors="backslashreplace") + b"\n"
        with self._lock:
            is_written = self._write(b"\n" + line if self._torn else line)
        if not is_written:
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


class _Handler(logging.Handler):
    """Sends the lines of standard loggers to the same place."""

    def __init__(self, writer: LineWriter, processors: Sequence[Any]) -> None:
        super().__init__()
        self._writer = writer
        name, *rest = processors
        without_record = structlog.stdlib.ProcessorFormatter.remove_processors_meta
        self.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[name, without_record, *rest]))

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.write(self.format(record))


class _Logger:
    """What structlog's loggers end in."""

    def __init__(self, writer: LineWriter, name: str = "") -> None:
        self.name = name
        self.info = self.warning = self.error = writer.write


def set_up_log(log_format: LogFormat) -> LineWriter:
    """Send every logger's lines to standard error; return what writes them."""
    fd = sys.stderr.fileno()
    as_text = log_format is LogFormat.TEXT or (log_format is LogFormat.AUTO and os.isatty(fd))
    processors = [
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", key="time"),
        structlog.processors.format_exc_info,  # as text: a traceback with the values of locals may hold secrets
        _text(fd) if as_text else structlog.processors.JSONRenderer(),
    ]
    writer = LineWriter(fd)
    logging.basicConfig(level=logging.INFO, handlers=[_Handler(writer, processors)], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=processors,
        logger_factory=partial(_Logger, writer),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    return writer


def _text(fd: int) -> Any:
    plain = structlog.dev.plain_traceback
    return structlog.dev.ConsoleRenderer(colors=os.isatty(fd), timestamp_key="time", exception_formatter=plain)

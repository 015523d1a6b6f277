"""Lets long work in a thread notice that nobody wants it any more, however deep it is in calls.

Work is begun under ``heeding`` and says at every step ``check``. What the work is, and
who may stop it, is not known here. Outside ``heeding`` a check costs nothing and stops
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from warmshelf.errors import LoadCancelled

_here = threading.local()  # ``cancelled`` of the work that this thread does now, if it has one


@contextmanager
def heeding(cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let ``check`` in this thread stop the work once ``cancelled`` says so."""
    before = getattr(_here, "cancelled", None)
    _here.cancelled = cancelled
    try:
        yield
    finally:
        _here.cancelled = before


def check() -> None:
    """Stop here if nobody wants the work any more.

    Raises:
        LoadCancelled: nobody does.
    """
    cancelled = getattr(_here, "cancelled", None)
    if cancelled is not None and cancelled():
        raise LoadCancelled("the work was stopped: nobody waits for it any more")

"""Keeps the process to itself: other processes of the same user cannot look into it.

What it has in memory are keys, tokens, and descriptors through which sealed segments could be written. Knows nothing of
them.
"""

from __future__ import annotations

import ctypes
import resource

_PR_SET_DUMPABLE = 4  # of prctl.h


def keep_private() -> None:
    """Refuse to be traced, read through /proc or dumped, by all but root with the capability for it.

    Without effect where the kernel has no such thing.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

"""What a load is asked for, and what it gives. Knows nothing of how it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from warmshelfd.inspecting import Examined
from warmshelfd.load import Load
from warmshelfd.memory.segment import Segment
from warmshelfd.registry.base import Registration

Complete = Callable[[Registration, Examined], Awaitable[Registration]]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be loaded.

    Attributes:
        known: returns what is known of the artifact by now.
        load: says how far it is.
        reserved: called once space is promised.
        complete: adds what an inspection found, where it found something new.
        as_asked: adds what callers asked for since the load began.
        is_owed: says whether what was loaded still has to get its digest.
    """

    known: Callable[[], Registration]
    load: Load
    reserved: Callable[[], None]
    complete: Complete
    as_asked: Callable[[Registration], Registration]
    is_owed: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The bytes of an artifact, what is to be remembered of it, and what was known when its bytes began to come.

    Shared ones count as being read until ``end_stream``.
    """

    segment: Segment
    registration: Registration
    known: Registration
    is_shared: bool = False

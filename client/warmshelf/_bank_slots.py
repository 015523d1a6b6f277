"""Which adapter lies in which slot of a bank, who uses it, and which slot is taken next. Knows no tensor."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from warmshelf.errors import BankFull, InvalidRequest


class Content(NamedTuple):
    """What a slot holds: one generation of an adapter. The digest tells apart an ID that was removed and made anew."""

    artifact_id: str
    generation: int
    digest: str


class SlotTable:
    """Slots 1 to ``slot_count``, those that nobody holds replaced by least recent use. May be shared by threads.

    ``_freed`` guards all that follows it, and tells whoever waits for a slot. ``_filled`` has the
    slot of every content that is there, the least recently used first; ``_empty`` the slots without any;
    ``_holds`` how often each is held. A slot being filled is held and in neither of the first two.
    """

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self._freed = threading.Condition()
        self._filled: OrderedDict[Content, int] = OrderedDict()
        self._empty = list(range(slot_count, 0, -1))
        self._holds = [0] * (slot_count + 1)

    def hold(self, content: Content) -> int:
        """Hold the slot that has the content and return it; 0 if none has."""
        with self._freed:
            slot = self._filled.get(content, 0)
            if slot:
                self._filled.move_to_end(content)
                self._holds[slot] += 1
            return slot

    def take(self, wait_seconds: float) -> int:
        """Hold a slot that nobody holds, empty now, and return it.

        Raises:
            BankFull: all were held for so long.
        """
        until = time.monotonic() + wait_seconds
        with self._freed:
            while not (slot := self._free()):
                left = until - time.monotonic()
                if left <= 0 or not self._freed.wait(left):
                    raise BankFull(
                        f"all {self.slot_count} slots of the bank are in use, also after {wait_seconds:g} s",
                        slot_count=self.slot_count,
                        wait_seconds=wait_seconds,
                    )
            self._holds[slot] += 1
            return slot

    def fill(self, slot: int, content: Content) -> None:
        """Say what a slot that was taken holds from now on."""
        with self._freed:
            self._filled[content] = slot

    def drop(self, slot: int) -> None:
        """Give back a slot that was taken and could not be filled."""
        with self._freed:
            self._holds[slot] -= 1
            self._empty.append(slot)
            self._freed.notify()

    def hold_again(self, slots: Iterable[int]) -> None:
        """Hold slots that are held already.

        Raises:
            InvalidRequest: one is none of this bank's, or nobody holds it, so that it may hold anything by now.
        """
        wanted = set(slots) - {0}
        with self._freed:
            for slot in wanted:
                if not (0 < slot <= self.slot_count and self._holds[slot]):
                    raise InvalidRequest(f"slot {slot} is held by nobody: the bank's are 1 to {self.slot_count}")
            for slot in wanted:
                self._holds[slot] += 1

    def release(self, slots: Iterable[int]) -> None:
        """Let go of slots, each once. What they hold stays until another adapter needs the room."""
        with self._freed:
            for slot in set(slots) - {0}:
                self._holds[slot] -= 1
            self._freed.notify_all()

    def contents(self) -> dict[int, Content]:
        """Return what is there, by slot."""
        with self._freed:
            return {slot: content for content, slot in self._filled.items()}

    def _free(self) -> int:
        if self._empty:
            return self._empty.pop()
        for content, slot in self._filled.items():
            if not self._holds[slot]:
                del self._filled[content]
                return slot
        return 0

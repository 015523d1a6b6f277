"""A load that waits for room finds out meanwhile whether it waits in vain, and gives nothing away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from warmshelf.errors import ArenaFull, SourceChanged
from warmshelfd.doubting import reserve_unless

Waiting = Callable[[ArenaFull | None], None]


class Room:
    """Room that is given when ``free`` is set."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.given_back: list[str] = []

    async def reserve(self, waiting: Waiting) -> str:
        if not self.free.is_set():
            waiting(ArenaFull("no room"))
            await self.free.wait()
        waiting(None)
        return "room"


def ignore(_: ArenaFull | None) -> None:
    pass


async def changed() -> None:
    raise SourceChanged("other bytes")


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_source_that_turns_out_to_be_changed_ends_the_wait() -> None:
    room = Room()
    with pytest.raises(SourceChanged):
        await reserve_unless(room.reserve, ignore, changed, room.given_back.append)


async def test_where_there_is_room_nothing_is_read_twice() -> None:
    room = Room()
    room.free.set()
    assert await reserve_unless(room.reserve, ignore, changed, room.given_back.append) == "room"


@pytest.mark.parametrize("settle", [None, never])
async def test_room_that_comes_first_ends_the_doubts(settle: Callable[[], asyncio.Future[None]] | None) -> None:
    room = Room()
    task = asyncio.ensure_future(reserve_unless(room.reserve, ignore, settle, room.given_back.append))
    await asyncio.sleep(0)
    room.free.set()
    assert await task == "room"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_room_that_comes_just_when_nobody_waits_any_more_is_given_back() -> None:
    """Whichever turn of the loop the cancel comes at: room is either not taken or given back."""
    for turns in range(8):
        room = Room()
        task = asyncio.ensure_future(reserve_unless(room.reserve, ignore, never, room.given_back.append))
        for _ in range(3):
            await asyncio.sleep(0)
        room.free.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done
        taken = not task.cancelled()
        assert not (taken and room.given_back)
        assert taken or room.given_back in ([], ["room"])
    assert asyncio.all_tasks() == {asyncio.current_task()}

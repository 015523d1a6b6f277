"""Whose turn it is."""

from __future__ import annotations

import asyncio

from warmshelfd.turns import Priority, Turns


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_demand_goes_before_prefetch_before_preload_and_equals_in_their_order() -> None:
    turns, order = Turns(), []
    gate = asyncio.Event()

    async def take(name: str, priority: Priority) -> None:
        async with turns.turn(lambda: priority):
            order.append(name)
            await gate.wait()

    first = asyncio.create_task(take("first", Priority.PRELOAD))
    await _settle()
    waiting = [("p1", Priority.PRELOAD), ("f1", Priority.PREFETCH), ("d1", Priority.DEMAND), ("d2", Priority.DEMAND)]
    tasks = []
    for name, priority in waiting:
        tasks.append(asyncio.create_task(take(name, priority)))
        await _settle()
    gate.set()
    await asyncio.gather(first, *tasks)
    assert order == ["first", "d1", "d2", "f1", "p1"]
    assert not turns.taken


async def test_a_wish_that_becomes_a_demand_overtakes() -> None:
    turns, order = Turns(), []
    gate, wish = asyncio.Event(), [Priority.PRELOAD]

    async def take(name: str, priority: list[Priority]) -> None:
        async with turns.turn(lambda: priority[0]):
            order.append(name)
            await gate.wait()

    tasks = [asyncio.create_task(take("first", [Priority.DEMAND]))]
    await _settle()
    for name, priority in (("prefetch", [Priority.PREFETCH]), ("wish", wish)):
        tasks.append(asyncio.create_task(take(name, priority)))
        await _settle()
    wish[0] = Priority.DEMAND
    gate.set()
    await asyncio.gather(*tasks)
    assert order == ["first", "wish", "prefetch"]


async def test_who_gives_up_waiting_or_dies_with_the_turn_in_hand_blocks_nobody() -> None:
    turns = Turns()

    async def hold(gate: asyncio.Event) -> None:
        async with turns.turn(lambda: Priority.DEMAND):
            await gate.wait()

    never = asyncio.Event()
    holder = asyncio.create_task(hold(never))
    await _settle()
    waiter, last = asyncio.create_task(hold(never)), asyncio.create_task(hold(never))
    await _settle()
    holder.cancel()
    waiter.cancel()  # it may have the turn already, or not
    await _settle()
    assert repr(turns) == "<Turns taken, 0 waiting>"
    last.cancel()
    await asyncio.gather(holder, waiter, last, return_exceptions=True)
    assert repr(turns) == "<Turns free, 0 waiting>"


async def test_a_waiter_cancelled_in_the_moment_its_turn_comes_is_passed_over() -> None:
    turns, order = Turns(), []
    gate = asyncio.Event()

    async def take(name: str) -> None:
        async with turns.turn(lambda: Priority.DEMAND):
            order.append(name)
            await gate.wait()

    tasks = [asyncio.create_task(take("first"))]
    await _settle()
    for name in ("cancelled", "next"):
        tasks.append(asyncio.create_task(take(name)))
        await _settle()
    gate.set()
    tasks[1].cancel()  # before the first has run on and given its turn away
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["first", "next"]
    assert [task.cancelled() for task in tasks] == [False, True, False]
    assert repr(turns) == "<Turns free, 0 waiting>"


async def test_who_can_do_nothing_with_the_turn_gives_way_to_the_more_urgent_only() -> None:
    turns, order = Turns(), []
    gate = asyncio.Event()

    async def wait_for_room() -> None:
        async with turns.turn(lambda: Priority.PREFETCH) as give_way:
            while not gate.is_set():
                await give_way()
                await asyncio.sleep(0)
            order.append("first")

    async def take(name: str, priority: Priority) -> None:
        async with turns.turn(lambda: priority):
            order.append(name)

    tasks = [asyncio.create_task(wait_for_room())]
    await _settle()
    for name, priority in (("equal", Priority.PREFETCH), ("later", Priority.PRELOAD), ("urgent", Priority.DEMAND)):
        tasks.append(asyncio.create_task(take(name, priority)))
    await _settle()
    assert order == ["urgent"]
    gate.set()
    await asyncio.gather(*tasks)
    assert order == ["urgent", "first", "equal", "later"]
    assert repr(turns) == "<Turns free, 0 waiting>"


async def test_who_is_cancelled_after_it_gave_way_takes_the_turn_from_nobody() -> None:
    turns = Turns()

    async def give_way_for_ever() -> None:
        async with turns.turn(lambda: Priority.PRELOAD) as give_way:
            while True:
                await give_way()
                await asyncio.sleep(0)

    async def hold() -> None:
        async with turns.turn(lambda: Priority.DEMAND):
            await asyncio.Event().wait()

    polite, urgent = asyncio.create_task(give_way_for_ever()), asyncio.create_task(hold())
    await _settle()
    polite.cancel()
    await _settle()
    assert repr(turns) == "<Turns taken, 0 waiting>"
    urgent.cancel()
    await asyncio.gather(polite, urgent, return_exceptions=True)
    assert repr(turns) == "<Turns free, 0 waiting>"

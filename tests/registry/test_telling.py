"""How much is done before the event loop turns, and who waits for whom."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from warmshelf.errors import RegistryUnavailable, WarmshelfError
from warmshelfd.registry.sqlite import SqliteRegistry
from warmshelfd.registry.telling import in_steps

TURN_COUNT_MAX = 10


async def test_the_event_loop_turns_while_thousands_are_taken_up() -> None:
    done: list[int] = []
    between: list[int] = []  # how many were done whenever the loop came round

    async def take(number: int) -> None:
        done.append(number)

    async def others() -> None:
        while len(done) < 1000:
            between.append(len(done))
            await asyncio.sleep(0)

    turning = asyncio.ensure_future(others())
    await in_steps(take, range(1000), lambda number: number % 3 > 0)
    await turning
    assert sorted(done) == list(range(1000))
    steps = [after - before for before, after in pairwise(between)]
    assert max(steps) <= 2 * TURN_COUNT_MAX  # what is not free begins a turn later


async def test_who_waits_for_somebody_holds_nobody_up() -> None:
    done: list[int] = []
    go = asyncio.Event()

    async def take(number: int) -> None:
        if number == 1:
            await go.wait()
        done.append(number)

    taking = asyncio.ensure_future(in_steps(take, range(30), lambda number: number != 1))
    while len(done) < 29:
        await asyncio.sleep(0)
    assert not taking.done()
    go.set()
    await taking
    assert done[-1] == 1


async def test_nobody_waits_for_what_is_begun_but_it_is_in_order_and_its_failure_is_told(tmp_path: Path) -> None:
    registry = SqliteRegistry(str(tmp_path / "registry.sqlite"))
    failures: list[WarmshelfError] = []

    def put(name: str) -> None:
        registry.begin(
            lambda connection: connection.execute("REPLACE INTO registrations VALUES (?, '{}')", (name,)),
            failures.append,
        )

    def names(connection: sqlite3.Connection) -> list[bytes]:
        return [name for (name,) in connection.execute("SELECT artifact_id FROM registrations ORDER BY 1")]

    try:
        for name in ("a", "b", "c"):
            put(name)
        assert await registry.run(names) == [b"a", b"b", b"c"]
        assert failures == []
        registry.begin(lambda connection: connection.execute("no SQL"), failures.append)
        with suppress(RegistryUnavailable):  # if it was one transaction
            await registry.run(names)
        assert [type(failure) for failure in failures] == [RegistryUnavailable]
        put("d")
        assert await registry.run(names) == [b"a", b"b", b"c", b"d"]
    finally:
        await registry.close()


async def test_who_stops_taking_up_leaves_nothing_running_behind() -> None:
    begun: list[int] = []

    async def take(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    taking = asyncio.ensure_future(in_steps(take, range(30), lambda _: False))
    while not begun:
        await asyncio.sleep(0)
    taking.cancel()
    with suppress(asyncio.CancelledError):
        await taking
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}

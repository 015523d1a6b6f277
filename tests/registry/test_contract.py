"""What every registry must do, and each kind of registry doing it.

To add a kind: subclass ``RegistryContract`` and say how to make one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.ports import free_port
from kit.redis_server import RedisServer
from warmshelf.errors import Internal
from warmshelf.types import Alias
from warmshelfd.registry.base import Heard, Listener, Registration, Registry
from warmshelfd.registry.open import open_registry
from warmshelfd.registry.records import registration_to_json

WRITER = """
import asyncio, sys
from dataclasses import replace
from warmshelfd.registry.open import open_registry
from warmshelfd.registry.records import registration_from_json

async def main():
    registry = open_registry(sys.argv[1], copy_path=sys.argv[2])
    full = registration_from_json(sys.stdin.readline())
    await registry.put(full)
    await registry.put(replace(full, artifact_id="deleted"))
    await registry.delete("deleted")
    await asyncio.gather(*(registry.put(replace(full, artifact_id=f"n{i}", generation=i)) for i in range(50)))
    print("durable", flush=True)
    for i in range(10**9):
        await registry.put(replace(full, artifact_id="after", generation=i))

asyncio.run(main())
"""


class Place(NamedTuple):
    """A registry, and where the node's copy of it is if it has one."""

    uri: str
    copy_path: str = ""

    def open(self) -> Registry:
        return open_registry(self.uri, copy_path=self.copy_path)


class Deaf(Listener):
    """Takes nothing up: only what this registry is given is looked at."""

    async def hear(self, heard: Heard) -> bool:
        return True

    def hear_alias(self, alias: Alias) -> None:
        pass

    def hear_alias_removed(self, name: str) -> None:
        pass

    def note_sync(self, artifact_id: str) -> None:
        pass


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Registry]:
    registry = place.open()
    try:
        if place.copy_path:
            await registry.load_all()
            registry.start(Deaf())
        yield registry
    finally:
        await registry.close()


class RegistryContract(ABC):
    """The promises of ``Registry``, for any kind of it."""

    @abstractmethod
    @pytest.fixture
    def place(self) -> Place:
        """Name a registry that is empty when first opened and keeps what it is given."""

    async def test_a_new_registry_is_empty(self, place: Place) -> None:
        async with opened(place) as registry:
            assert await registry.load_all() == []

    @settings(
        max_examples=30,
        deadline=None,  # one test for several kinds of registry
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(st.data())
    def test_what_was_put_is_loaded_field_by_field_also_when_opened_anew(
        self, place: Place, registrations: st.SearchStrategy[Registration], data: st.DataObject
    ) -> None:
        some = {r.artifact_id: r for r in data.draw(st.lists(registrations, max_size=5))}

        async def prove() -> None:
            async with opened(place) as registry:
                for known in await registry.load_all():
                    await registry.delete(known.artifact_id)
                for registration in some.values():
                    await registry.put(registration)
                assert await registry.load_all() == sorted(some.values(), key=lambda r: r.artifact_id)
            async with opened(place) as registry:
                assert await registry.load_all() == sorted(some.values(), key=lambda r: r.artifact_id)

        asyncio.run(prove())

    async def test_ids_that_differ_only_in_case_or_in_signs_are_kept_apart(
        self, place: Place, full: Registration
    ) -> None:
        """B05: no ID is folded."""
        some = [replace(full, artifact_id=i, generation=g) for g, i in enumerate(["Org/A", "a:b", "org/a", "org_a"])]
        async with opened(place) as registry:
            for registration in reversed(some):
                await registry.put(registration)
            assert await registry.load_all() == some

    async def test_the_last_of_several_puts_of_an_id_stays(self, place: Place, full: Registration) -> None:
        async with opened(place) as registry:
            await asyncio.gather(*(registry.put(replace(full, generation=g)) for g in range(20)))
            assert await registry.load_all() == [replace(full, generation=19)]

    async def test_deleting_twice_or_what_was_never_there_is_fine(self, place: Place, full: Registration) -> None:
        async with opened(place) as registry:
            await registry.put(full)
            await registry.delete(full.artifact_id)
            await registry.delete(full.artifact_id)
            await registry.delete("never")
            assert await registry.load_all() == []

    async def test_puts_and_deletes_called_at_once_take_effect_in_order(self, place: Place, full: Registration) -> None:
        async with opened(place) as registry:
            await asyncio.gather(
                registry.put(full), registry.delete(full.artifact_id), registry.put(replace(full, generation=9))
            )
            assert await registry.load_all() == [replace(full, generation=9)]

    async def test_hundreds_of_puts_at_once_are_all_kept(self, place: Place, full: Registration) -> None:
        some = [replace(full, artifact_id=f"a{number:03}") for number in range(300)]
        async with opened(place) as registry:
            await asyncio.gather(*map(registry.put, some))
            assert await registry.load_all() == some

    async def test_a_caller_that_is_cancelled_harms_no_other_and_no_order(
        self, place: Place, full: Registration
    ) -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        async with opened(place) as registry:
            tasks = [asyncio.create_task(registry.put(replace(full, generation=g))) for g in range(50)]
            await asyncio.sleep(0)  # each has been called now
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(r) for r in results[1::2]] == [type(None)] * 25
            assert await registry.load_all() == [replace(full, generation=49)]
        assert faults == []

    async def test_closing_finishes_what_was_called_before(self, place: Place, full: Registration) -> None:
        registry = place.open()
        pending = [asyncio.create_task(registry.put(replace(full, artifact_id=f"a{n}"))) for n in range(9)]
        await asyncio.sleep(0)
        await asyncio.gather(registry.close(), registry.close())
        await asyncio.gather(*pending)
        await registry.close()
        async with opened(place) as registry:
            assert len(await registry.load_all()) == 9

    async def test_after_closing_nothing_is_accepted(self, place: Place, full: Registration) -> None:
        registry = place.open()
        await registry.close()
        for call in (registry.load_all(), registry.put(full), registry.delete("a")):
            with pytest.raises(Internal, match="closed"):
                await call

    async def test_what_a_call_has_returned_for_survives_a_kill(
        self, place: Place, record: str, full: Registration
    ) -> None:
        """B53: registrations are there after the process died without warning."""
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, *place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write(record + "\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "durable\n"
            os.kill(writer.pid, signal.SIGKILL)  # in the midst of more writes
        assert writer.returncode == -signal.SIGKILL
        async with opened(place) as registry:
            kept = {r.artifact_id: r for r in await registry.load_all()}
        kept.pop("after", None)
        expected = {f"n{i}": replace(full, artifact_id=f"n{i}", generation=i) for i in range(50)}
        assert kept == expected | {full.artifact_id: full}

    async def test_ten_thousand_records_are_loaded_in_order(self, place: Place, full: Registration) -> None:
        some = [replace(full, artifact_id=f"acme/adapter-{number:05}") for number in range(10_000)]
        async with opened(place) as registry:
            began = time.perf_counter()
            await asyncio.gather(*map(registry.put, some))
            put_seconds = time.perf_counter() - began
        began = time.perf_counter()
        async with opened(place) as registry:
            loaded = await registry.load_all()
        print(f"10,000 records: put in {put_seconds:.2f} s, opened and loaded in {time.perf_counter() - began:.2f} s")
        assert loaded == some


@pytest.fixture
def record(full: Registration) -> str:
    return registration_to_json(full)


class TestSqliteRegistry(RegistryContract):
    """The contract, kept by a file."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"sqlite://{tmp_path}/state/registry.sqlite")


class TestRedisRegistry(RegistryContract):
    """The contract, kept by a copy in a file while a thread shares it."""

    @pytest.fixture
    def place(self, tmp_path: Path, shared_redis: RedisServer) -> Place:
        with shared_redis.client() as client:
            client.flushall()
        return Place(shared_redis.uri(), str(tmp_path / "copy.sqlite"))


class TestRedisRegistryWithoutRedis(RegistryContract):
    """The contract, while the server is away all the time."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"redis://127.0.0.1:{free_port()}/0", str(tmp_path / "copy.sqlite"))

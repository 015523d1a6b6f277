"""Calls about one artifact that meet while one of them waits: neither undoes the other, now or after a restart."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from kit.inner_core import SLOW, InnerCore
from kit.models import content_digest, filled
from warmshelf.errors import ArtifactNotFound, LoadCancelled, SegmentCorrupt
from warmshelf.types import ArtifactState


async def test_what_is_asked_for_during_a_load_stands_after_it(core: InnerCore) -> None:
    await core.register()
    waiting = core.acquire()
    await core.until(ArtifactState.LOADING)
    artifact = await core.register(keep_resident=True, follow=True)
    assert (artifact.state, artifact.keep_resident) == (ArtifactState.LOADING, True)
    granted = await waiting
    assert (granted.artifact.keep_resident, granted.artifact.follow) == (True, True)


async def test_a_load_that_lands_while_its_id_is_registered_again_keeps_its_bytes(core: InnerCore) -> None:
    await core.register("b")
    core.registry.is_slow = True
    again = core.register("b", keep_resident=True)
    await core.registry.waiting.wait()
    granted = await core.acquire()
    core.registry.allowed.set()
    assert (await again).keep_resident
    assert core.shelf.catalog.get("x").segment_id == granted.segment.segment_id


async def test_bytes_loaded_anew_while_their_source_is_looked_at_stay(core: InnerCore) -> None:
    await core.register("b")
    first = await core.acquire()
    await core.check()
    core.release(first)
    os.utime(core.path("b"))
    core.registry.is_slow = True
    again = core.register("b", keep_resident=True)
    await core.registry.waiting.wait()
    await core.shelf.evict("x", drain=False)
    second = await core.acquire()
    core.registry.allowed.set()
    await again
    assert core.shelf.catalog.get("x").segment_id == second.segment.segment_id != first.segment.segment_id


async def test_the_registration_of_an_id_that_is_removed_meanwhile_does_not_bring_it_back(core: InnerCore) -> None:
    await core.register("b")
    for options in ({"keep_resident": True}, {"replace": True}):
        again = core.register("a" if "replace" in options else "b", **options)
        await asyncio.sleep(0)  # it looks at the source now
        await core.shelf.remove("x")
        told = await again
        assert told.spec.source.uri.endswith("/a.safetensors" if "replace" in options else "/b.safetensors")
        assert list(core.shelf.catalog) == []
        assert await core.registry.load_all() == []
        await core.register("b")


async def test_a_replaced_artifact_is_not_brought_back_by_a_load_of_the_old_one(core: InnerCore) -> None:
    await core.register()
    waiting = core.acquire()
    await core.until(ArtifactState.LOADING)
    core.registry.is_slow = True
    replacing = core.register("b", replace=True)
    granted = await waiting
    core.registry.allowed.set()
    await replacing
    assert granted.artifact.spec.source.uri == core.shelf.get("x").spec.source.uri == f"file://{core.path('b')}"


async def test_who_waits_for_a_load_is_given_what_its_artifact_is_replaced_by(core: InnerCore) -> None:
    await core.register()
    steps = core.leasing.progress("x", 20.0)
    await anext(steps)
    detached = [step async for step in core.leasing.progress("x", 20.0, detach=True)]
    waiting = core.acquire()
    await core.until(ArtifactState.LOADING)
    await core.register("b", replace=True)
    assert (await waiting).artifact.spec.source.uri == f"file://{core.path('b')}"
    told = [step async for step in steps]
    assert told[-1].artifact is not None
    assert told[-1].artifact.state is ArtifactState.READY
    assert len(detached) == 1


async def test_who_waits_outlasts_any_number_of_replacements(core: InnerCore) -> None:
    await core.register()
    steps = core.leasing.progress("x", 60.0)
    await anext(steps)
    for number in range(600):
        await core.register("ba"[number % 2], replace=True)
        while core.shelf.flights.find("x") is None:
            await anext(steps)
    told = [step async for step in steps]
    assert told[-1].artifact is not None
    assert told[-1].artifact.state is ArtifactState.READY


async def test_a_detached_load_goes_on_with_what_its_artifact_is_replaced_by(core: InnerCore) -> None:
    await core.register()
    assert len([step async for step in core.leasing.progress("x", 20.0, detach=True)]) == 1
    await core.until(ArtifactState.LOADING)
    await core.register("b", replace=True)
    await core.until(ArtifactState.READY)
    assert core.shelf.get("x").spec.source.uri == f"file://{core.path('b')}"


async def test_who_waits_for_a_load_is_told_that_its_artifact_was_removed(core: InnerCore) -> None:
    await core.register()
    waiting = core.acquire()
    await core.until(ArtifactState.LOADING)
    await core.shelf.remove("x")
    with pytest.raises(LoadCancelled):
        await waiting


async def test_a_registration_that_nobody_waits_for_any_more_is_whole(core: InnerCore) -> None:
    core.registry.is_slow = True
    registering = core.register("b")
    await core.registry.waiting.wait()
    registering.cancel()
    await asyncio.wait([registering])
    assert core.shelf.get("x").state is ArtifactState.REGISTERED


async def test_a_load_that_is_stopped_just_when_room_may_have_come_waits_no_longer(core: InnerCore) -> None:
    await core.register("b")
    everything = core.arena.reserve(core.arena.budget_bytes)
    waiting = core.acquire()
    while not (load := core.shelf.flights.find("x")) or load.room is None:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # now it waits
    core.shelf.residency.notify()
    core.shelf.flights.abandon("x")
    with pytest.raises(LoadCancelled):
        await waiting
    everything.release()
    assert (await core.acquire()).lease.generation == 1


async def test_a_load_that_is_stopped_before_it_began_is_no_success(core: InnerCore) -> None:
    await core.register("b")
    steps = core.leasing.progress("x", 20.0)
    await anext(steps)
    core.shelf.flights.abandon("x")
    with pytest.raises(LoadCancelled):
        await anext(steps)


async def test_what_is_verified_is_judged_by_the_digest_it_had_then(core: InnerCore) -> None:
    """Its bytes are replaced, and the new digest is known, before the old bytes have been looked at."""
    await core.register("b")
    await core.acquire()
    await core.check()
    gate = threading.Event()
    core.shelf.hash_threads.submit(gate.wait)
    verifying = asyncio.create_task(core.observing.verify("x"))
    await asyncio.sleep(0)
    await core.register("a", replace=True, digest=content_digest(SLOW))
    assert (await core.acquire()).artifact.digest == content_digest(SLOW)
    gate.set()
    assert await verifying >= len(filled(2)["w"][2])


async def test_bytes_found_wrong_under_one_id_are_given_out_under_no_other(core: InnerCore) -> None:
    await core.register("b")
    await core.register("b", "y")
    for artifact_id in "xy":
        core.release(await core.acquire(artifact_id))
    await core.check()
    old = core.shelf.catalog.get("x").segment_id
    assert core.shelf.catalog.get("y").segment_id == old
    spoil(f"{core.arena.directory}/{old}", core.shelf.residency.get(old).segment.header.data.offset)
    with pytest.raises(SegmentCorrupt):
        await core.observing.verify("x")
    assert [core.shelf.get(artifact_id).state for artifact_id in "xy"] == [ArtifactState.FAILED] * 2
    assert (await core.acquire("y")).segment.segment_id != old


async def test_a_lease_is_not_granted_on_what_was_removed_while_it_was_checked(core: InnerCore) -> None:
    """The bytes are an earlier daemon's, so they are checked before the first lease."""
    await core.register()
    segment_id = (await core.acquire()).segment.segment_id
    await core.check()
    core.shelf.residency.get(segment_id).segment.checked = False
    waiting = core.acquire()
    while core.shelf.residency.get(segment_id).checking is None:
        await asyncio.sleep(0)
    await core.shelf.remove("x")
    with pytest.raises(ArtifactNotFound):
        await waiting
    assert len(core.shelf.leases) == 1


def spoil(path: str, offset: int) -> None:
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"wrong")
    os.chmod(path, 0o440)

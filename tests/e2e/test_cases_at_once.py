"""Calls on one ID that cross each other: registrations, loads and removals under way at the same time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from warmshelf import ArtifactState, errors

MIB = 1 << 20


def test_what_is_registered_during_a_load_holds_after_it(daemon: Daemon, models: Path) -> None:
    """A registration with more wishes, while the first load is under way; also after a restart."""
    tensors = write_model(models / "a.safetensors", 1, 40 * MIB)
    daemon.start(failpoints="load.part=delay(300)", env={"WARMSHELF_READ_THREADS": "1"})
    with daemon.connect() as shelf, ThreadPoolExecutor(1) as pool:
        shelf.register("a", models / "a.safetensors")
        waiting = pool.submit(shelf.acquire, "a", timeout=20)
        eventually(lambda: shelf.get("a").state is ArtifactState.LOADING, "the load has begun")
        asked = shelf.register("a", models / "a.safetensors", keep=True, follow=True)
        assert (asked.keep_resident, asked.follow) == (True, True)
        assert read_all(waiting.result()) == tensors
        after = shelf.get("a")
        assert (after.keep_resident, after.follow, after.state) == (True, True, ArtifactState.READY)
        daemon.kill()
        daemon.start()
        again = shelf.get("a")
        assert (again.keep_resident, again.follow, again.state) == (True, True, ArtifactState.READY)


def test_a_load_that_ends_during_a_registration_is_not_forgotten(daemon: Daemon, models: Path) -> None:
    """The registration reads a touched source for its digest while the load publishes; also after a restart."""
    tensors = write_model(models / "a.safetensors", 1, 200 * MIB)
    daemon.start("--budget", "256MiB", failpoints="load.published=delay(60)")
    with daemon.connect() as shelf, ThreadPoolExecutor(1) as pool:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
        eventually(lambda: shelf.get("a").digest != "", "the digest is known")
        shelf.evict("a")
        os.utime(models / "a.safetensors")
        waiting = pool.submit(shelf.acquire, "a", timeout=20)
        eventually(lambda: len(daemon.segments()) == 1, "the load publishes")
        shelf.register("a", models / "a.safetensors")
        waiting.result().release()
        with shelf.acquire("a", timeout=20, resident_only=True) as lease:
            assert read_all(lease) == tensors
        daemon.kill()
        daemon.start("--budget", "256MiB")
        shelf.acquire("a", timeout=20, resident_only=True).release()


def test_a_removal_during_a_registration_comes_before_it_or_after_it(daemon: Daemon, models: Path) -> None:
    """The registration reads a touched source for its digest meanwhile; what is known then is known after a restart."""
    tensors = write_model(models / "a.safetensors", 1, 200 * MIB)
    daemon.start("--budget", "256MiB")
    with daemon.connect() as shelf, ThreadPoolExecutor(1) as pool:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
        eventually(lambda: shelf.get("a").digest != "", "the digest is known")
        os.utime(models / "a.safetensors")
        before = daemon.read_bytes()
        registering = pool.submit(shelf.register, "a", models / "a.safetensors")
        eventually(lambda: daemon.read_bytes() - before > 4 * MIB, "the source is being read")
        shelf.remove("a")
        assert registering.exception() is None or isinstance(registering.exception(), errors.WarmshelfError)
        known = [artifact.artifact_id for artifact in shelf.list()]
        daemon.kill()
        daemon.start("--budget", "256MiB")
        assert [artifact.artifact_id for artifact in shelf.list()] == known
        if known:
            with shelf.acquire("a", timeout=20) as lease:
                assert read_all(lease) == tensors

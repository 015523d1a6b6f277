"""A start with everything around it missing, and an end in the middle of an end."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from kit.models import write_model
from kit.plain import Plain
from kit.processes import Daemon, eventually, read_all
from kit.scrape import HTTP, pages_of
from warmshelf import ArtifactState

MIB = 1 << 20
IN_HASTE = {
    "WARMSHELF_SOURCE_CONNECT_SECONDS": "0.5",
    "WARMSHELF_SOURCE_ANSWER_SECONDS": "0.5",
    "WARMSHELF_SOURCE_RETRY_SECONDS": "1",
}


def is_ready(daemon: Daemon) -> bool:
    return pages_of(daemon).status("/readyz") == 200


def test_a_start_with_redis_and_every_preload_source_away_serves_and_becomes_ready(
    daemon: Daemon, models: Path
) -> None:
    """B57: Redis refuses, one source hangs, one refuses, one is gone, one ID was never heard of; what is left works."""
    tensors = write_model(models / "a.safetensors", 1)
    declared = daemon.root / "declared.toml"
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        hangs, refuses = (f"http://127.0.0.1:{one.getsockname()[1]}/" for one in (silent, refusing))
        declared.write_text(
            f'["hangs"]\nsource = "{hangs}x.safetensors"\n["refuses"]\nsource = "{refuses}x.safetensors"\n'
            f'["gone"]\nsource = "file://{models}/gone.safetensors"\n["a"]\nsource = "file://{models}/a.safetensors"\n'
        )
        daemon.start(
            *("--declare", str(declared), "--preload", "hangs", "refuses", "gone", "unheard-of", "a"),
            *("--registry", f"redis://127.0.0.1:{refusing.getsockname()[1]}/0"),
            *("--allow-source", hangs, "--allow-source", refuses, *HTTP),
            env={**IN_HASTE, "WARMSHELF_REGISTRY_COPY": str(daemon.registry)},
            wait=False,
        )
        daemon.wait_listening()
        with daemon.connect() as shelf:
            eventually(lambda: is_ready(daemon), "the preload has been tried", 20)
            assert shelf.get("a").state is ArtifactState.READY
            with shelf.acquire("a", timeout=20) as lease:
                assert read_all(lease) == tensors
        assert daemon.process is not None
        assert daemon.process.poll() is None
    for artifact_id in ("hangs", "refuses", "gone", "unheard-of"):
        assert f"preload of {artifact_id}: " in daemon.log.read_text()


def test_a_preload_that_finds_no_room_does_not_keep_the_daemon_from_being_ready(daemon: Daemon, models: Path) -> None:
    """What is kept does not leave for it, and may stay for days."""
    for name in "ab":
        write_model(models / f"{name}.safetensors", ord(name), 8 * MIB)
    daemon.start("--budget", "12MiB")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors", keep=True)
        shelf.register("b", models / "b.safetensors")
        shelf.acquire("a", timeout=20).release()
        daemon.kill(signal.SIGTERM)
        daemon.start("--budget", "12MiB", "--preload", "b", *HTTP, wait=False)
        daemon.wait_listening()
        eventually(lambda: is_ready(daemon), "the preload has been tried", 15)
        assert [a.state.value for a in shelf.list()] == ["ready", "registered"]
    assert "preload of b: ARENA_FULL" in daemon.log.read_text()


@pytest.mark.parametrize("how", ["before the grace is over", "while it stops"])
def test_a_daemon_killed_while_it_drains_is_taken_over_as_one_killed_at_work(
    daemon: Daemon, models: Path, how: str
) -> None:
    """B57, D7: the segments are there, and the next start reads no source."""
    tensors = write_model(models / "a.safetensors", 1, 64 * MIB)
    daemon.start("--budget", "128MiB", env={"WARMSHELF_DRAIN_SECONDS": "60" if how.startswith("before") else "0.2"})
    with Plain(daemon.tcp_address) as plain:
        plain.register("a", models / "a.safetensors")
        stream = plain.read(plain.acquire("a").lease.lease_id)
        next(stream)
        os.kill(daemon.pid, signal.SIGTERM)
        eventually(lambda: is_over(plain), "the drain has begun")
        assert daemon.kill(signal.SIGKILL) in (-signal.SIGKILL, 0)
    (models / "a.safetensors").unlink()
    start = time.monotonic()
    daemon.start("--budget", "128MiB")
    assert time.monotonic() - start < 5
    with daemon.connect() as shelf, shelf.acquire("a", timeout=20, resident_only=True) as lease:
        assert read_all(lease) == tensors


def is_over(plain: Plain) -> bool:
    try:
        return plain.health_of() == "NOT_SERVING"
    except Exception:
        return True

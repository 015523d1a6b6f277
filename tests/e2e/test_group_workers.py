"""Workers that are another user and share a group with the arena: they map over TCP, and can write nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon

GROUP, USER = 20001, 20002
PROGRAM = """
import os, sys, warmshelf
address, arena = sys.argv[1:]
with warmshelf.connect(address, arena=arena) as shelf, shelf.acquire("a", writable=False) as lease:
    size = sum(len(lease[name]) for name in lease)
    print(lease.transport, lease.fallback_reason or "-", size, os.access(arena, os.W_OK))
"""


@pytest.mark.parametrize(("group", "transport"), [(GROUP, "mapped"), (USER, "streamed")])
def test_a_worker_of_the_arenas_group_maps_and_one_of_another_streams(
    daemon: Daemon, models: Path, arena_dir: Path, group: int, transport: str
) -> None:
    os.chown(arena_dir, 0, GROUP)
    arena_dir.chmod(0o2750)
    daemon.start("--budget", "64MiB")
    size = sum(map(len, write_model(models / "a.safetensors", 1, 1 << 20).values()))
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
    become = ("setpriv", "--reuid", str(USER), "--regid", str(USER), "--groups", str(group))
    words = (*become, sys.executable, "-c", PROGRAM, daemon.tcp_address, str(arena_dir))
    environ = {**os.environ, "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environ, cwd="/", check=False)
    told = done.stdout.split()
    assert told[:1] == [transport], done.stdout + done.stderr
    assert told[2:] == [str(size), "False"]

"""A source that changes when all of it has been read, and nothing is sealed yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.models import filled, safetensors_bytes
from kit.processes import Daemon, eventually
from warmshelf import errors

pytestmark = pytest.mark.e2e

SIZE = 1 << 20


def test_a_change_behind_the_last_read_fails_the_load(daemon: Daemon, models: Path) -> None:
    """Every read was of the old file; that it is another one by now is seen by its fingerprint alone."""
    source = models / "a.safetensors"
    source.write_bytes(safetensors_bytes(filled(1, SIZE)))
    daemon.start(failpoints="load.read=delay(2000)")
    with daemon.connect() as shelf, ThreadPoolExecutor(1) as pool:
        shelf.register("a", source)
        waiting = pool.submit(shelf.acquire, "a", timeout=20)
        eventually(lambda: bool(daemon.leftovers()), "the load has begun")
        eventually(lambda: _is_read(daemon), "all of it has been read")
        source.write_bytes(safetensors_bytes(filled(2, SIZE)))
        with pytest.raises(errors.SourceChangedDuringLoad):
            waiting.result()
    assert daemon.segments() == []


def _is_read(daemon: Daemon) -> bool:
    (name,) = daemon.leftovers()
    return (daemon.arena / name).read_bytes().count(1) >= SIZE

"""The daemon has no descriptor left to open."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.processes import Daemon, read_all
from warmshelf import errors

pytestmark = pytest.mark.e2e

UNREACHED = (errors.DaemonUnreachable, errors.DeadlineExceeded)


def test_a_daemon_without_descriptors_says_so_and_serves_again_when_it_has_some(daemon: Daemon, models: Path) -> None:
    """M9: loads fail with a typed error, who is connected is served, and waiting at the door costs no core."""
    resident = write_model(models / "a.safetensors", 1)
    cold = write_model(models / "b.safetensors", 2)
    daemon.start()
    with daemon.connect() as shelf:
        for name in "ab":
            shelf.register(name, models / f"{name}.safetensors")
        shelf.acquire("a").release()
        _, usual = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (_lowest_free(daemon), usual))
        with pytest.raises(errors.WarmshelfError) as caught:
            shelf.acquire("b", timeout=5)
        assert not isinstance(caught.value, errors.DaemonUnreachable)
        assert shelf.get("a").artifact_id == "a"
        with pytest.raises(UNREACHED), warmshelf.connect(daemon.address, timeout=0.5) as other:
            other.get("a")
        began, used = time.monotonic(), _cpu_seconds(daemon)
        while time.monotonic() - began < 1:
            assert shelf.get("a").artifact_id == "a"
            time.sleep(0.1)  # the door is what is watched
        assert _cpu_seconds(daemon) - used < 0.7
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (usual, usual))
        for name, tensors in (("a", resident), ("b", cold)):
            with shelf.acquire(name, timeout=20) as lease:
                assert read_all(lease) == tensors


def _lowest_free(daemon: Daemon) -> int:
    taken = {int(link.name) for link in Path(f"/proc/{daemon.pid}/fd").iterdir()}
    return min(set(range(len(taken) + 1)) - taken)


def _cpu_seconds(daemon: Daemon) -> float:
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100

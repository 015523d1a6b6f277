"""Deadlines so short that answers are lost: nothing of what failed stays."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kit.models import write_model
from kit.processes import Daemon, eventually
from warmshelf import errors


def test_an_acquire_whose_answer_comes_too_late_leaves_no_lease(running: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    with running.connect() as shelf, running.connect() as operator:
        shelf.register("a", f"file://{models}/a.safetensors")
        shelf.acquire("a", timeout=20).release()
        held = []
        for i in range(200):
            with contextlib.suppress(errors.DeadlineExceeded, errors.DaemonUnreachable):  # anything else is a failure
                held.append(shelf.acquire("a", timeout=0.0003 + i * 0.00001))
        for lease in held:
            lease.release()
        eventually(lambda: not operator.leases(), "no lease is left")
        assert operator.evict("a").state.value == "registered"

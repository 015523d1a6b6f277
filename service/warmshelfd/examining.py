"""What doctor finds on this node, for the status page: asked in a process of its own, when somebody looks.

A process of its own, because doctor may import torch to see a GPU, and takes a while. Runs on
the event loop, and knows of a check no more than its words.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from warmshelfd.memory.arena import Arena
from warmshelfd.running import stop
from warmshelfd.statusrows import FindingRow, cut

_log = logging.getLogger(__name__)

EXAMINE_SECONDS = 600.0
"""How old findings may become while somebody looks: what they tell of changes with mounts and limits."""

_COMMAND_SECONDS_MAX = 60.0
"""It takes a second or two; more where a GPU is asked."""

_REACH = "daemon"
"""Whether doctor may call us is no matter here: it has no credentials, where some are asked for."""

_ANSWER_BYTES_MAX = 1 << 20

_PASSED_ON = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
_PASSED_ON_PREFIXES = ("CUDA_", "LC_", "NVIDIA_")
"""What of our environment doctor gets. The rest may be secrets, and other processes of our user can read doctor's."""


class Examining:
    """The findings, as they were when doctor was last asked."""

    def __init__(self, address: str, arena: Arena) -> None:
        self._address = address
        self._arena = arena
        # Event loop only.
        self._found: Sequence[FindingRow] = ()
        self._begin_seconds = -EXAMINE_SECONDS  # by the monotonic clock
        self._task: asyncio.Task[None] | None = None

    def findings(self) -> Sequence[FindingRow]:
        """Return what is not as it should be, the worst first; ask doctor if that is too old. Never waits."""
        now = time.monotonic()
        if now - self._begin_seconds >= EXAMINE_SECONDS and (self._task is None or self._task.done()):
            self._begin_seconds = now
            self._task = asyncio.get_running_loop().create_task(self._ask())
        return self._found

    async def close(self) -> None:
        """End what is under way."""
        await stop(self._task)

    async def _ask(self) -> None:
        where = ("--address", self._address, "--arena", self._arena.directory)
        more = ("--budget", str(self._arena.whole_budget_bytes), "--output", "json")
        command = (sys.executable, "-m", "warmshelf.cli", "doctor", *where, *more)
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        environ = passed_on(os.environ)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=nothing, stdout=pipe, stderr=nothing, env=environ
        )
        try:
            text, _ = await asyncio.wait_for(process.communicate(), _COMMAND_SECONDS_MAX)
            self._found = _rows(text)
        except (asyncio.TimeoutError, ValueError) as error:
            _log.warning("doctor did not say how this node is: %s", error or "it took too long")
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment another program gets."""
    return {k: v for k, v in environ.items() if k in _PASSED_ON or k.startswith(_PASSED_ON_PREFIXES)}


def _rows(text: bytes) -> tuple[FindingRow, ...]:
    """Return the findings of doctor's JSON that are worth a line.

    Raises:
        ValueError: it is none.
    """
    if len(text) > _ANSWER_BYTES_MAX:
        raise ValueError(f"{len(text)} bytes")
    match json.loads(text):
        case {"findings": [*found]}:
            rows = [_row(one) for one in found]
            order = ("problem", "warning", "note")
            shown = (row for row in rows if row.level in order and row.check != _REACH)
            return tuple(sorted(shown, key=lambda row: order.index(row.level)))
    raise ValueError("no findings")


def _row(found: object) -> FindingRow:
    match found:
        case {"check": str(check), "level": str(level), "text": str(words), "advice": str(advice)}:
            return FindingRow(cut(check), level, cut(words), cut(advice))
    raise ValueError("no finding")

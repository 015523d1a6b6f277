"""``warmshelfd``: parse, assemble, run."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from warmshelf.errors import InvalidConfig, WarmshelfError
from warmshelfd.app import Daemon
from warmshelfd.config import parse
from warmshelfd.memory.allocator import tune_allocator
from warmshelfd.memory.arena import Arena

_log = logging.getLogger("warmshelfd")


def main() -> None:
    """Run the daemon; exit 0 when it was asked to stop, 1 if it cannot serve, 2 for wrong usage."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    tune_allocator()
    try:
        _run()
    except InvalidConfig as error:
        sys.exit(_tell(error, 2))
    except WarmshelfError as error:
        sys.exit(_tell(error, 1))


def _run() -> None:
    settings, warnings = parse(sys.argv[1:], os.environ)
    for warning in warnings:
        _log.warning("%s", warning)
    arena = Arena.open(settings.arena, settings.budget, settings.pin, settings.reserve_bytes)
    if settings.purge:
        print(f"removed {arena.purge()} segments from {arena.directory}")
        arena.close()
        return
    asyncio.run(Daemon(settings, arena).serve())


def _tell(error: WarmshelfError, status: int) -> int:
    print(f"warmshelfd: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()

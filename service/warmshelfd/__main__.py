"""``warmshelfd``: parse, assemble, run."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys

from warmshelf.errors import InvalidConfig, WarmshelfError
from warmshelfd.app import Daemon
from warmshelfd.config import parse
from warmshelfd.logs import set_up_log
from warmshelfd.memory.allocator import tune_allocator
from warmshelfd.memory.arena import Arena
from warmshelfd.privacy import keep_private
from warmshelfd.tenancies import purge

_log = logging.getLogger("warmshelfd")


def main() -> None:
    """Run the daemon; exit 0 when it was asked to stop, 1 if it cannot serve, 2 for wrong usage."""
    tune_allocator()
    try:
        _run()
    except InvalidConfig as error:
        sys.exit(_tell(error, 2))
    except WarmshelfError as error:
        sys.exit(_tell(error, 1))


def _run() -> None:
    settings, warnings = parse(sys.argv[1:], os.environ)
    if not settings.traceable:
        keep_private()
    log = set_up_log(settings.log_format)
    for warning in warnings:
        _log.warning("%s", warning)
    _allow_open_files()
    arena = Arena.open(settings.arena, settings.budget, settings.pin, settings.reserve_bytes)
    if settings.purge:
        print(f"removed {purge(arena)} segments from {arena.directory}")
        arena.close()
        return
    daemon = Daemon(settings, arena)
    log.on_lost = daemon.metrics.line_lost
    asyncio.run(daemon.serve())


def _allow_open_files() -> None:
    """Allow as many open files as we may have: each resident segment takes two, each client one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tell(error: WarmshelfError, status: int) -> int:
    print(f"warmshelfd: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()

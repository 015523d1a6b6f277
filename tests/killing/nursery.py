"""Starts daemons in milliseconds: a process that has imported the daemon and forks for each start.

Each daemon is a process of its own, runs ``warmshelfd.__main__`` from its first line,
and is killed by its own SIGKILL. Only the imports are shared. Run as a program it takes
one order a line, and its output is the daemons' with lines of its own in between.
"""

from __future__ import annotations

import json
import os
import sys

STARTED, ENDED = "nursery started", "nursery ended"


def main() -> None:
    """Carry out orders, one daemon at a time."""
    from warmshelfd import __main__, failpoints  # noqa: PLC0415 - what takes long, once

    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            failpoints._ARMED.update(failpoints._parse(order["failpoints"]))
            _become(order)
            __main__.main()
            sys.exit()
        print(STARTED, pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(ENDED, os.waitstatus_to_exitcode(status), flush=True)


def _become(order: dict[str, list[str]]) -> None:
    sys.argv = ["warmshelfd", *order["arguments"]]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)


if __name__ == "__main__":
    main()

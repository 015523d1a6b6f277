"""Runs a module as a program that ends when the process that started it does, however that ended.

    python -m examples.tied PARENT_PID MODULE ARGUMENT...

It does not know what the module does.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that the kernel sends when the parent has ended."""


def tied(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module tied to this process. Start it from a thread that stays."""
    return [sys.executable, "-m", "examples.tied", str(os.getpid()), module, *map(str, arguments)]


def _main() -> None:
    parent_pid, module = int(sys.argv[1]), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM)):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # it ended before
        return
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()

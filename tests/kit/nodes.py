"""A node of Kubernetes, as far as mounts go: a mount namespace where the chart's script has run, and pods in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kit.chart import CHART

SCRIPT = CHART / "files" / "prepare-node.sh"
USER = 10001
"""Whom pods run as."""

_SETUP = f"""
mount -t tmpfs none /run
mkdir /run/warmshelf
sh {SCRIPT} mount "$1" "$2" "$3" "$3" huge=within_size
echo up
exec cat
"""
_POD = 'mount --bind "$1" /run/warmshelf; shift; exec setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups "$@"'


class Node:
    """A node whose directory is ``root``. Its mounts end with it."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        self.root = root
        self._daemons: list[subprocess.Popen[str]] = []
        words = ["sh", "-euc", _SETUP, "sh", str(root), str(size_bytes), str(USER)]
        self._holder = subprocess.Popen(  # holds the namespace for as long as we do not close its input
            ["unshare", "--mount", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"

    def daemon(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Start a daemon as the DaemonSet mounts it, and wait until it is ready."""
        process = self._pod("memory/shelf", [sys.executable, "-m", "warmshelfd", *arguments])
        self._daemons.append(process)
        assert process.stdout is not None
        line = next((line for line in process.stdout if " ready: " in line), "")  # the log comes the same way
        assert line, "the daemon ended before it was ready"
        return process

    def purge(self, arguments: Sequence[str]) -> str:
        """Run the daemon to its end, as the purge's pod does; return what it prints, also if it refuses."""
        process = self._pod("memory/shelf", [sys.executable, "-m", "warmshelfd", *arguments])
        return process.communicate(timeout=30)[0]

    def worker(self, program: str) -> str:
        """Run a Python program in a pod that has the claim; return what it prints."""
        process = self._pod("workers/shelf", [sys.executable, "-c", program])
        printed = process.communicate(timeout=30)[0]
        assert process.returncode == 0, printed
        return printed

    def close(self) -> None:
        """End what a failed test may have left, and with the last process the mounts."""
        for process in self._daemons:
            process.kill()
            process.communicate(timeout=10)
        self._holder.communicate(timeout=10)

    def _pod(self, offered: str, command: Sequence[str]) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMSHELF_")}
        environ |= {"USER_ID": str(USER), "HOME": "/nowhere", "WARMSHELF_ADDRESS": "unix:///run/warmshelf/api.sock"}
        enter = ["nsenter", "--mount", "--target", str(self._holder.pid), "unshare", "--mount"]
        return subprocess.Popen(
            [*enter, "sh", "-euc", _POD, "sh", str(self.root / offered), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
            cwd="/",
        )

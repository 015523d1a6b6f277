"""Adapters as directories in memory, for a vLLM whose workers cannot be given mapped ones.

Each is what ``warmshelf export`` writes: the files that PEFT saves. They stay for as long as this
process lives, because the engine may read one again at any time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref

from warmshelf._adapter_names import AdapterName
from warmshelf.export import check_target, write_directory
from warmshelf.lease import Lease

_MEMORY = "/dev/shm"  # noqa: S108 - a file system, and mkdtemp makes the name


class Spool:
    """The directories of one process, removed at its end. ``_root`` is guarded by ``_lock``; "" until one is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._root = ""

    def write(self, name: AdapterName, lease: Lease) -> str:
        """Return the adapter's directory, written now if it was not yet."""
        with self._lock:
            if not self._root:
                where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
                self._root = tempfile.mkdtemp(prefix="warmshelf-vllm-", dir=where)
                weakref.finalize(self, _remove, self._root, os.getpid())
            path = os.path.join(self._root, name.name)
            if not os.path.isdir(path):
                write_directory(lease, check_target(path))
            return path


def _remove(root: str, pid: int) -> None:
    if pid == os.getpid():  # a fork's end is not ours
        shutil.rmtree(root, ignore_errors=True)

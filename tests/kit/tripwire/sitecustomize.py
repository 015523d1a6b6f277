"""A tripwire in the daemon: writes down whatever no daemon of ours has any business to do.

Python imports this by its name, before anything else, where its directory is on
``PYTHONPATH``. Knows nothing of warmshelf. Settings come by the environment: TRIPWIRE
is the file to write to, TRIPWIRE_PATHS what may be opened, TRIPWIRE_SERVING a file that
exists once the process has started and only serves.

What it cannot see: what compiled code opens (gRPC's sockets), and below which directory
a relative name is opened; so names that lead up are told, and the process should be
started in an empty directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_NO_MODULES = frozenset({"cloudpickle", "dill", "multiprocessing", "numpy", "tensorizer", "torch"})
"""Never imported."""

_NO_MODULES_WHILE_SERVING = frozenset({"_pickle", "pickle", "pickletools", "shelve"})
"""protobuf imports pickle at the start, to offer that its own messages be pickled."""

_ALWAYS = frozenset(
    {
        "pickle.find_class",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
        "pty.spawn",
        "socket.connect",
        "socket.sendto",
        "urllib.Request",
        "cpython.run_command",
        "cpython.run_interactivehook",
        "cpython.run_stdin",
    }
)
"""No matter when."""

_WHILE_SERVING = frozenset(
    {"ctypes.dlopen", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "sys.addaudithook"}
)

_PATHS = {
    "open": 1,
    "os.chmod": 1,
    "os.link": 2,
    "os.listdir": 1,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.scandir": 1,
    "os.symlink": 2,
    "os.truncate": 1,
    "shutil.rmtree": 1,
    "sqlite3.connect": 1,
}
"""How many of an event's first arguments are paths."""

_LIBRARIES = tuple({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if path})
_KERNEL = ("/proc", "/sys/fs/cgroup", "/sys/kernel/mm", "/dev/null", "/dev/urandom")
_ETC = ("/etc/localtime", "/etc/mime.types", "/usr/share/zoneinfo")


class Tripwire:
    """Tells of each kind of event once."""

    def __init__(self, told: Path, allowed: Sequence[str], serving: str) -> None:
        self._fd = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._allowed = (*allowed, *_LIBRARIES, *_KERNEL, *_ETC)
        self._serving = serving
        self._told: set[str] = set()  # under the interpreter's lock; twice is no harm
        self._tell(f"armed optimize={sys.flags.optimize}")

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Judge one event."""
        if event in _ALWAYS or (event in _WHILE_SERVING and self._is_serving()):
            self._tell(f"{event} {arguments!r}")
        elif event == "import" and self._is_forbidden(str(arguments[0]).partition(".")[0]):
            self._tell(f"import {arguments[0]}")
        elif event in {"exec", "compile"} and self._is_serving() and not _is_importing():
            self._tell(f"{event} {arguments!r}")
        elif event in _PATHS:
            for path in arguments[: _PATHS[event]]:
                if isinstance(path, (str, bytes)) and not self._may_open(os.fsdecode(path)):
                    self._tell(f"{event} {os.fsdecode(path)}")

    def _is_forbidden(self, module: str) -> bool:
        return module in _NO_MODULES or (module in _NO_MODULES_WHILE_SERVING and self._is_serving())

    def _is_serving(self) -> bool:
        return os.path.exists(self._serving)

    def _may_open(self, path: str) -> bool:
        if not path.startswith("/"):
            return ".." not in path.split("/")
        path = os.path.normpath(path)
        return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in self._allowed)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            os.write(self._fd, f"{text}\n".encode(errors="backslashreplace"))


def _is_importing() -> bool:
    """Say whether what runs is the body of a module that is being imported: that is code of an installed file."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


if "TRIPWIRE" in os.environ:
    sys.addaudithook(
        Tripwire(
            Path(os.environ["TRIPWIRE"]),
            [os.path.realpath(path) for path in os.environ["TRIPWIRE_PATHS"].split(os.pathsep)],
            os.environ["TRIPWIRE_SERVING"],
        )
    )

"""The ``warmshelf`` command: what ``client.py`` returns, printed.

Exit status: 0 done, 1 the daemon refused, 2 wrong usage, 3 no daemon can be reached.
"""

from __future__ import annotations

import errno
import os
import sys

USAGE_STATUS = 2
UNWRITTEN_STATUS = 1
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main() -> int:
    """Run the command."""
    try:
        # Typer and rich come with an extra. The commands are listed in the order in which their modules are imported.
        from warmshelf import _cli_app, _cli_commands, _cli_doctor, _cli_files  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        print(f"warmshelf: the command needs {error.name}: pip install 'warmshelf[cli]'", file=sys.stderr)
        return USAGE_STATUS
    try:
        _cli_app.app(prog_name="warmshelf")
    except SystemExit as ended:
        return _written(ended.code if isinstance(ended.code, int) else 0)
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:  # then it is no fault of the output
            raise
        return _unwritten(error)
    return _written(0)


def _written(status: int) -> int:
    """Return the status if all that was printed could be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return status or _unwritten(error)
    return status


def _unwritten(error: OSError) -> int:
    print(f"warmshelf: the output cannot be written: {error.strerror}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries once more at its end
    return UNWRITTEN_STATUS


if __name__ == "__main__":
    sys.exit(main())

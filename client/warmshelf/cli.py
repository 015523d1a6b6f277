"""The ``warmshelf`` command: what ``client.py`` returns, printed.

Exit status: 0 done, 1 the daemon refused, 2 wrong usage, 3 no daemon can be reached.
"""

from __future__ import annotations

import sys

USAGE_STATUS = 2


def main() -> int:
    """Run the command."""
    try:
        from warmshelf import _cli_app, _cli_commands  # noqa: F401, PLC0415 - typer and rich come with an extra
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        print(f"warmshelf: the command needs {error.name}: pip install 'warmshelf[cli]'", file=sys.stderr)
        return USAGE_STATUS
    _cli_app.app(prog_name="warmshelf")
    return 0


if __name__ == "__main__":
    sys.exit(main())

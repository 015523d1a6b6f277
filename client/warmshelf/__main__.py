"""``python -m warmshelf``: the ``warmshelf`` command of this interpreter."""

import sys

from warmshelf.cli import main

if __name__ == "__main__":
    sys.exit(main())

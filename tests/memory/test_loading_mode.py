"""A file that is being loaded cannot be opened for writing by its name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from warmshelfd.memory.arena import LOADING_MODE, _create

NAME = ".00000000000000000000000000000000.loading"


def test_an_unfinished_file_can_be_written_by_whoever_made_it_and_by_nobody_else(tmp_path: Path) -> None:
    """Cutting it needs the right to write to it."""
    directory = os.open(tmp_path, os.O_RDONLY)
    file = _create(directory, NAME, 4096)
    try:
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == LOADING_MODE == 0o400
        with file.view() as view:
            view[:4] = b"here"
        assert (tmp_path / NAME).read_bytes()[:4] == b"here"
    finally:
        file.close()
        os.close(directory)

"""Starts a process with a tripwire in it, and reads what it told; see ``tripwire/sitecustomize.py``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOOK = Path(__file__).parent / "tripwire"


@dataclass(frozen=True)
class Tripwire:
    """Where one tells, and what is allowed."""

    root: Path
    allowed: tuple[Path, ...]

    @property
    def environ(self) -> Mapping[str, str]:
        """What the environment of the process needs, and Python's own switch for the likes of ``-O``."""
        before = os.environ.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HOOK), before))),
            "PYTHONOPTIMIZE": "1",
            "TRIPWIRE": str(self._told),
            "TRIPWIRE_PATHS": os.pathsep.join(map(str, self.allowed)),
            "TRIPWIRE_SERVING": str(self._serving),
        }

    @property
    def _told(self) -> Path:
        return self.root / "tripwire.told"

    @property
    def _serving(self) -> Path:
        return self.root / "tripwire.serving"

    def serve(self, *, serving: bool = True) -> None:
        """From now on it serves, or starts again."""
        if serving:
            self._serving.touch()
        else:
            self._serving.unlink(missing_ok=True)

    def told(self) -> list[str]:
        """Return everything but that it was armed; fails if it never was."""
        lines = self._told.read_text().splitlines()
        assert "armed optimize=1" in lines
        return [line for line in lines if not line.startswith("armed ")]

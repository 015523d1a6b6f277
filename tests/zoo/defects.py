"""The defects of ``defects.toml``: for each what it breaks, and the tests that must see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


@dataclass(frozen=True)
class Defect:
    """One defect.

    Attributes:
        name: what it is called.
        breaks: what is so with it and must not be.
        file: where it is planted.
        old: what stands there, exactly once.
        new: what stands there instead.
        test: the file of tests that must turn red.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    test: str


DEFECTS = tuple(Defect(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["defect"])

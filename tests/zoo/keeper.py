"""Plants a defect in a copy of the code and runs the tests that must see it, with that copy in place of ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zoo.defects import Defect

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("client", "service")
TEST_SECONDS = 300
"""A file of tests that takes longer has hung, which is a way to see a defect, but none that says much."""


@dataclass(frozen=True)
class Outcome:
    """What the tests said: how many failed, the first that did, and how long they took."""

    failed_count: int
    first: str
    seconds: float
    text: str


class Copy:
    """A copy of the code, whole but for one defect at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, directory / folder, ignore=shutil.ignore_patterns("__pycache__"))

    @contextmanager
    def planted(self, defect: Defect) -> Iterator[None]:
        """Plant a defect, and take it out again."""
        path = self.directory / defect.file
        text = path.read_text()
        if text.count(defect.old) != 1:
            raise ValueError(f"{defect.name}: what it replaces stands {text.count(defect.old)} times in {defect.file}")
        path.write_text(text.replace(defect.old, defect.new))
        try:
            yield
        finally:
            path.write_text(text)

    def run(self, test: str, *options: str) -> Outcome:
        """Run a file of tests with this copy, up to the first failure."""
        begun = time.monotonic()
        paths = [*(str(self.directory / folder) for folder in FOLDERS), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", *options, test],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TEST_SECONDS,
        )
        found = re.findall(r"^(?:FAILED|ERROR) \S*::(\w+)", done.stdout, re.MULTILINE)
        if done.returncode < 0:  # the defect ended the tests themselves
            found = [f"the tests' own process died of signal {-done.returncode}"]
        elif done.returncode and not found:
            raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout}")
        return Outcome(len(found), found[0] if found else "", time.monotonic() - begun, done.stdout)

"""The corpus of URLs in ``tests/data/urls.txt``, which says what is to come of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

CORPUS = Path(__file__).parents[1] / "data" / "urls.txt"


class Case(NamedTuple):
    """One URL."""

    verdict: str
    url: str


def cases(port: int) -> list[Case]:
    """Return all of them, with a port where a listener waits."""
    lines = [line for line in CORPUS.read_text().splitlines() if line and not line.startswith("#")]
    found = [Case(verdict, json.loads(url)) for verdict, _, url in (line.partition(" ") for line in lines)]
    return [Case(verdict, url.replace("{port}", str(port))) for verdict, url in found]

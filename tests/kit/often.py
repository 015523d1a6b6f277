"""How often the tests of the night repeat things.

``WARMSHELF_TEST_SHARE=0.01 pytest -m nightly`` repeats a hundredth as often, to try the tests themselves.
"""

from __future__ import annotations

import os


def times(count: int, least: int = 1) -> int:
    """Return how often to repeat what a night repeats ``count`` times."""
    return max(least, int(count * float(os.environ.get("WARMSHELF_TEST_SHARE", "1"))))

"""Headless Chromium, as a person's browser: what a page looks like, and what it makes of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--enable-logging=stderr", "--v=0"),
)


@cache
def command() -> str:
    """Return a command that runs it; the first call may fetch it."""
    script = subprocess.run([str(ROOT / "scripts" / "chromium")], capture_output=True, text=True, check=True)
    return script.stdout.strip()


def _run(url: str, *options: str) -> tuple[str, list[str]]:
    """Show a page; return what is printed, and what the page's console said."""
    with tempfile.TemporaryDirectory() as profile:
        ran = subprocess.run(
            [command(), *_OPTIONS, f"--user-data-dir={profile}", *options, url],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    return ran.stdout, re.findall(r'CONSOLE[^"]*"(.*)"', ran.stderr)


def screenshot(url: str, path: Path, width: int = 1200, height: int = 1600, *, is_dark: bool = False) -> list[str]:
    """Write a picture of a page; return what its console said."""
    dark = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0") if is_dark else ()
    return _run(url, *dark, f"--window-size={width},{height}", f"--screenshot={path}")[1]


def document(url: str) -> tuple[str, list[str]]:
    """Return a page as the browser has it after it has read it, and what its console said."""
    return _run(url, "--dump-dom")

"""What a long run proved, written down as a file of ``evidence/``: when, on what, of which commit, with which bound."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "evidence"


def bound_of(trial_count: int) -> float:
    """Return below which rate a fault that was never seen in so many independent trials lies, at 95 %."""
    return float(f"{3 / trial_count:.3g}")


def write_evidence(path: Path, facts: Mapping[str, Any]) -> None:
    """Write the facts of a run with where it ran."""
    whole = {
        **facts,
        "commit": commit(),
        "ended": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%MZ}",
        "machine": machine(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")


def commit() -> str:
    """Return the commit of the code that ran; marked if any of it was not committed."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", "service", "client") else "")


def machine() -> dict[str, object]:
    """Return on what it ran."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if not done.returncode else "unknown"

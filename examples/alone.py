"""Runs one program of the examples by itself, so that what it needs in memory ends with it.

It does not know what the program does: only that it uses torch and asks nobody outside.
"""

from __future__ import annotations

import os
import subprocess

from examples.places import own_directory
from examples.tied import tied

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
"""The environment of a process that uses transformers and asks nobody outside for anything."""


def run_alone(module: str, *arguments: object) -> str:
    """Run a module as a program to its end; return what it printed."""
    with own_directory() as scratch:  # torch leaves things in its temporary directory
        environment = {**OFFLINE, "TMPDIR": str(scratch)}
        done = subprocess.run(tied(module, *arguments), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stderr}")
    return done.stdout

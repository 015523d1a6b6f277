"""``warmshelf prepare-model``: lays out a directory for an engine, and prints what lies there."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from warmshelf import _cli_render as render
from warmshelf._incoming import LOAD_TIMEOUT_SECONDS
from warmshelf.client import Shelf
from warmshelf.prepare import Marker, prepare_directory


def run(shelf: Shelf, artifact_id: str, directory: str) -> Marker:
    """Make the base resident, and lay out its small files."""
    with shelf.acquire(artifact_id, timeout=LOAD_TIMEOUT_SECONDS) as lease:
        return prepare_directory(lease, directory)


def show(marker: Marker, directory: str, output: render.Output) -> None:
    """Print what was laid out."""
    if output is render.Output.JSON:
        print(json.dumps({"directory": os.path.abspath(directory), **asdict(marker)}, indent=2))
    else:
        names = ", ".join(marker.file_names)
        print(f"prepared {directory} for {marker.artifact_id}, generation {marker.generation}: {names}")

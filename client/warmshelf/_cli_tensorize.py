"""``warmshelf tensorize`` and ``untensorize``: a bar while they convert, and what was written.

There is no message of the protocol for it; the JSON has the names of ``Converted``.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from warmshelf import _cli_render as render
from warmshelf import tensorize as converting
from warmshelf.tensorize import Converted, read_secret_file


def tensorize(source: str, out: str, key_file: str | None, tensor_parallel: int) -> Converted:
    """Convert to ``.tensors``."""
    secret = read_secret_file(key_file) if key_file is not None else None
    with render.bar(source) as tell:
        return converting.tensorize(source, out, secret=secret, tensor_parallel=tensor_parallel, tell=tell)


def untensorize(source: str, out: str, key_file: str | None) -> Converted:
    """Convert to safetensors."""
    secret = read_secret_file(key_file) if key_file is not None else None
    with render.bar(source) as tell:
        return converting.untensorize(source, out, secret=secret, tell=tell)


def show(found: Converted, out: str, output: render.Output) -> None:
    """Print what was written."""
    if output is render.Output.JSON:
        print(json.dumps({**asdict(found), "kind": found.kind.value}, indent=2))
        return
    names = found.file_names[0] + (f" and {len(found.file_names) - 1} more" if len(found.file_names) > 1 else "")
    encrypted = ", encrypted" if found.is_encrypted else ""
    print(f"wrote {names} to {out}: {found.tensor_count} tensors, {render.size(found.tensor_bytes)}{encrypted}")

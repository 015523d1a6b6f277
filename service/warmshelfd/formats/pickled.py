"""Recognises pickles, which are never opened, and says how to convert them.

Knows what the first bytes of a pickle and of a zip archive are, and nothing of what
is inside.
"""

from __future__ import annotations

import json
import os
import shlex

from warmshelf.errors import UnsupportedFormat

PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""How files end that torch wrote with pickle."""

SNIFF_BYTES = 4
"""How much of a file's beginning tells."""

_ZIP = b"PK\x03\x04"
_PROTOCOLS = range(2, 6)  # a pickle begins with 0x80 and its protocol


def is_pickled(head: bytes) -> bool:
    """Say whether a file that begins so is a pickle, or a zip archive, as torch's are."""
    return head.startswith(_ZIP) or (head[:1] == b"\x80" and len(head) > 1 and head[1] in _PROTOCOLS)


def refuse_pickled(name: str, head: bytes) -> None:
    """Refuse a file that begins as a pickle does.

    Raises:
        UnsupportedFormat: it does; the message has the command that converts it.
    """
    if is_pickled(head):
        raise UnsupportedFormat(
            f"{name} is a pickle, which could run code and is never opened. "
            f"If you trust it, convert it: {conversion_command(name)}",
            file=name,
        )


def conversion_command(name: str) -> str:
    """Return the shell command that turns the file into safetensors, to be run where it lies."""
    old, new = (json.dumps(text, ensure_ascii=False) for text in (name, os.path.splitext(name)[0] + ".safetensors"))
    script = (
        "import torch, safetensors.torch as s; "
        f'd = torch.load({old}, map_location="cpu", weights_only=True); '
        f"s.save_file({{k: v.clone().contiguous() for k, v in d.items()}}, {new})"
    )
    return f"python -c {shlex.quote(script)}"

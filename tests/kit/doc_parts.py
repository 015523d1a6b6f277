"""Parts of the documents that are made from settings and protos."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from warmshelfd import config

_PROTOS = Path(__file__).resolve().parents[2] / "protos" / "warmshelf" / "v1"
_LIMITS = ("_max", "_min", "_bytes", "_seconds", "_threads")


def is_limit(name: str) -> bool:
    """Say whether a setting stands in the table of limits."""
    return name.endswith(_LIMITS)


def settings() -> str:
    """Return every setting that is no limit."""
    lines = ["| key | option | means |", "|---|---|---|"]
    for name, field in config.Settings.model_fields.items():
        if not is_limit(name):
            option = f"`--{name.replace('_', '-')}`" if name in {*config._COMMAND_LINE, "purge"} else ""
            key = "" if name == "purge" else f"`{name}`"
            lines.append(f"| {key} | {option} | {' '.join((field.description or '').split())} |")
    return "\n".join(lines)


def calls() -> str:
    """Return every call, by its service, with the first sentence of its comment."""
    lines = ["| call | what it does |", "|---|---|"]
    for path in sorted(_PROTOS.glob("*.proto")):
        for service, body in re.findall(r"^service (\w+) \{\n(.*?)^\}", path.read_text(), re.DOTALL | re.MULTILINE):
            lines += [f"| `{service}` {call} | {text} |" for call, text in _calls(body)]
    return "\n".join(lines)


def _calls(body: str) -> Iterator[tuple[str, str]]:
    for comment, name in re.findall(r"((?:^  //[^\n]*\n)+)  rpc (\w+)\(", body, re.MULTILINE):
        text = " ".join(re.sub(r"^  //", "", comment, flags=re.MULTILINE).split())
        yield f"`{name}`", text.partition(". ")[0].partition(": ")[0].rstrip(".") + "."

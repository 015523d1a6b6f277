"""Writes the dashboards as JSON for Grafana: ``python deploy/mixin``. With ``--check``, only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from detail import detail
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from overview import overview

OUT = Path(__file__).resolve().parent / "dashboards"


def main() -> int:
    """Write or compare; return the exit status."""
    texts = {OUT / f"{board.uid}.json": _text(board) for board in (overview(), detail())}
    if sys.argv[1:] != ["--check"]:
        for path, text in texts.items():
            path.write_text(text)
        return 0
    old = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    unknown = [path for path in OUT.iterdir() if path not in texts]
    for path in old + unknown:
        print(f"deploy/mixin/dashboards/{path.name} is not current: `make mixin` writes it anew")
    return 1 if old or unknown else 0


def _text(board: object) -> str:
    return JSONEncoder(sort_keys=True, indent=2).encode(board) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""One target in one process: ``python -m fuzz.child MODULE TARGET CORPUS LIBFUZZER-OPTION ...``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["warmshelf", "warmshelfd"], enable_loader_override=False):
    MODULE = importlib.import_module(sys.argv[1])

from fuzz.oracle import Oracle

MEASURED_COUNT_MAX = 300
"""Of the corpus, the longest are run once more with every allocation counted."""


def main() -> None:
    """Fuzz one target until its time is over."""
    name, corpus, *options = sys.argv[2:]
    target = MODULE.TARGETS[name]
    for number, seed in enumerate(target.seeds()):
        if target.seeds_are_good:
            target.run(seed)
        Path(corpus, f"seed-{number}").write_bytes(seed)
    oracle = Oracle(target.run, target.typed)
    known = [path.read_bytes() for path in Path(corpus).iterdir()]
    oracle.measure(sorted(known, key=len)[-MEASURED_COUNT_MAX:])
    mutator = {"custom_mutator": target.mutator} if target.mutator else {}
    atheris.Setup([sys.argv[0], corpus, *options], oracle, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

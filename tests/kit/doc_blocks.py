"""Blocks of code in the documents, and how one is run as a reader would run it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.processes import Daemon
from warmshelfd import config
from warmshelfd.domain.declaration import parse_declaration

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMAND_SECONDS = 60


@dataclass(frozen=True)
class Block:
    """A fenced block: the page it is on, its language, its text."""

    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0].strip()

    @property
    def commands(self) -> list[str]:
        return re.findall(r"^\$ (.*)$", self.text, re.MULTILINE)


def blocks() -> Iterator[Block]:
    """Return every block of every page."""
    for path in PAGES:
        found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", path.read_text(), re.DOTALL | re.MULTILINE)
        for _, language, text in found:
            yield Block(str(path.relative_to(ROOT)), language, textwrap.dedent(text))


class Reader:
    """Somebody who types what a page says, with the paths of a machine of his own."""

    def __init__(self, daemon: Daemon, home: Path, names: dict[str, Any]) -> None:
        self.daemon = daemon
        self.home = home
        self.names = names
        self.printed = ""

    def run(self, block: Block) -> None:
        if block.language == "python":
            exec(compile(block.text, block.page, "exec"), self.names)
        for line in block.commands:
            self._type(shlex.split(line, comments=True))

    def _type(self, words: list[str]) -> None:
        if words[0] == "warmshelfd":
            self._start(words[1:])
        elif words[0] != "pip":  # the wheel's own test installs it
            assert words[0] == "warmshelf", f"nobody knows how to run {words}"
            self._run([sys.executable, "-m", "warmshelf.cli", *map(self._here, words[1:])])

    def _start(self, options: list[str]) -> None:
        assert options == ["--allow-source", "file:///models"], "the daemon of these tests has that and no more"
        config.parse(options, {})
        self.daemon.start("--budget", "64MiB")

    def _here(self, word: str) -> str:
        places = {"/models": str(self.daemon.models), "/tmp": str(self.home)}
        return re.sub(r"^(/models|/tmp)\b", lambda found: places[found[1]], word)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.home,
            env={**os.environ, "WARMSHELF_ADDRESS": self.daemon.address},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        self.printed += done.stdout


def check_toml(block: Block, path: Path) -> None:
    """Read a block as the daemon does: as its configuration, or as a file of declarations."""
    path.write_text(block.text)
    if re.match(r'\["', block.text):
        declared = parse_declaration(tomllib.loads(block.text))
        assert declared.artifacts or declared.patterns
    else:
        settings, warnings = config.parse(["--config", str(path)], {"HOME": str(path.parent)})
        assert (bool(settings), warnings) == (True, [])

"""What mkdocs is told beside docs/: the documents of the top level are pages too, and links lead to pages.

A link to what is no page, such as code, is left as its text. Pages of docs/ that no navigation has are put at its
end, so that a new one is not forgotten. Knows the names of files, and nothing of what is in them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

TOP_PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Documents of the top level, and the pages that they become."""

_ENTRY = re.compile(r"[0-9]+\. ")
_AS_WRITTEN = 3
"""Columns by which our documents indent what belongs to a numbered entry."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Add pages that the navigation does not have."""
    known = {page for entry in config.nav for page in _pages(entry)}
    there = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    config.nav += [page for page in there if page not in known]
    return config


def _pages(entry: Any) -> list[str]:
    return [entry] if isinstance(entry, str) else [page for pages in entry.values() for page in pages]


def on_files(files: Files, config: Any) -> Files:
    """Add the documents of the top level and a list of the decisions."""
    for name, page in TOP_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    entries = [f"- [{path.read_text(encoding='utf-8').splitlines()[0][2:]}]({path.name})" for path in decisions]
    files.append(File.generated(config, "decisions/index.md", content="\n".join(["# Decisions", "", *entries, ""])))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead every link to a page, and indent what is in lists as this Markdown wants it."""
    here = page.file.src_uri
    directory = "" if here in TOP_PAGES.values() else posixpath.join("docs", posixpath.dirname(here))
    text = "\n".join(_indented(markdown.splitlines()))
    return _LINK.sub(lambda found: _rewritten(found, directory, posixpath.dirname(here)), text)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    """Indent what belongs to a numbered entry by four spaces, where it stands below the entry's text with three."""
    is_entry, is_code, found = False, False, 0
    for line in lines:
        if line.startswith("```"):
            is_code = not is_code
        if line and not line.startswith(" "):
            is_entry, found = not is_code and bool(_ENTRY.match(line)), 0
        found = found or len(line) - len(line.lstrip())
        yield f" {line}" if is_entry and found == _AS_WRITTEN and line else line


def _rewritten(found: re.Match[str], directory: str, site_directory: str) -> str:
    mark, text, target = found.groups()
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or not path:
        return found[0]
    page = _page_of(posixpath.normpath(posixpath.join(directory, path)))
    return f"{mark}[{text}]({posixpath.relpath(page, site_directory or '.')}{hash_sign}{anchor})" if page else text


def _page_of(path: str) -> str:
    """Return the page that a file of the repository is; "" if it is none."""
    if path == "docs/decisions":
        return "decisions/index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else TOP_PAGES.get(path, "")

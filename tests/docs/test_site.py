"""The site that ``make docs`` builds: every page, no broken link, nothing that is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path


def test_every_document_is_a_page_and_every_page_of_docs_is_in_the_navigation(site: Path) -> None:
    pages = {str(path.relative_to(site))[: -len(".html")] for path in site.rglob("*.html")}
    documents = {str(path.relative_to(ROOT / "docs"))[: -len(".md")] for path in (ROOT / "docs").rglob("*.md")}
    top = {"readme", "changelog", "contributing", "security", "decisions/index"}
    assert pages == documents | top | {"404"}
    home = (site / "index.html").read_text()
    assert [name for name in documents | top if "/" not in name and f'href="{name}.html"' not in home] == []


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r'<(?:script|img|iframe)[^>]* src="(https?:)?//|<link[^>]* href="(https?:)?//')
    assert [path.name for path in site.rglob("*.html") if fetched.search(path.read_text())] == []


def test_blocks_in_lists_are_blocks_of_their_entries(site: Path) -> None:
    assert [path.name for path in site.rglob("*.html") if "```" in path.read_text()] == []
    steps = (site / "kubernetes.html").read_text().partition('id="node-mode-step-by-step"')[2].partition("<h")[0]
    assert (steps.count("<ol>"), steps.count("</ol>")) == (1, 1)
    assert steps.count("<li>") == len(re.findall(r"^[0-9]\. ", step_by_step(), re.MULTILINE)) > 1


def step_by_step() -> str:
    return (ROOT / "docs" / "kubernetes.md").read_text().partition("## Node mode")[2].partition("##")[0]


def test_links_to_code_are_text_and_links_between_documents_stay(site: Path) -> None:
    readme = (site / "readme.html").read_text()
    assert 'href="security.html"' in readme
    assert 'href="formats.html#tensorizer"' in readme
    assert 'href="client' not in readme
    assert "client/warmshelf/testing/" in readme

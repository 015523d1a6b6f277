"""What the daemon's image is made of: every wheel is written down by SHA-256, and it is what the project asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IMAGE_EXTRAS = {"daemon", "redis", "s3"}
OF_PYTHON_311 = {"python_version": "3.11", "python_full_version": "3.11.9"}


def lock(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes by name; every line that is no comment must be of one of these forms."""
    text = re.sub("^#.*\n", "", (ROOT / "requirements" / f"{name}.lock").read_text(), flags=re.MULTILINE)
    row = r"([\w-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
    assert re.fullmatch(f"(?:{row})+", text)
    return {found[1]: (found[2], re.findall(r"sha256:(\w+)", found[3])) for found in re.finditer(row, text)}


def closure(asked: Iterable[str], extras: Iterable[str] = ()) -> dict[str, list[Requirement]]:
    """Return every requirement by name, and theirs, as the metadata of what is installed here says."""
    found: dict[str, list[Requirement]] = {}
    left = [(text, {*extras} or {""}) for text in asked]
    while left:
        text, of_extras = left.pop()
        it = Requirement(text)
        if it.marker and not any(it.marker.evaluate({**OF_PYTHON_311, "extra": extra}) for extra in of_extras):
            continue
        name = canonicalize_name(it.name)
        if name != "warmshelf" and it not in found.setdefault(name, []):
            found[name].append(it)
            left += [(inner, it.extras or {""}) for inner in requires(name) or ()]
    return found


def image_requirements() -> list[str]:
    table = PROJECT["project"]["optional-dependencies"]
    rows = [row for extra in (*IMAGE_EXTRAS, "cli") for row in table[extra]]
    assert {row for row in rows if row.startswith("warmshelf[")} == {"warmshelf[cli]"}
    return [*PROJECT["project"]["dependencies"], *rows]


def test_the_image_has_exactly_what_the_project_asks_for_in_versions_that_it_asks_for() -> None:
    locked, wanted = lock("image"), closure(image_requirements())
    assert locked.keys() == wanted.keys()
    for name, requirements in wanted.items():
        assert all(one.specifier.contains(locked[name][0], prereleases=True) for one in requirements), name
    assert not {"torch", "numpy", "tensorizer"} & locked.keys()


def test_locked_versions_are_those_that_the_tests_run_with() -> None:
    rows = re.findall(r"^([\w.-]+)==([^;\s]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {canonicalize_name(name): version for name, version in rows}
    for name, (version, _) in {**lock("image"), **lock("build")}.items():
        assert pinned.get(name, version) == version, name


def test_what_builds_the_wheel_is_locked_too() -> None:
    assert {canonicalize_name(Requirement(one).name) for one in PROJECT["build-system"]["requires"]} <= lock(
        "build"
    ).keys()


def test_compiled_wheels_are_locked_for_both_kinds_of_machine() -> None:
    locked = lock("image")
    assert all(len(locked[name][1]) == 2 for name in ("grpcio", "blake3", "crc32c", "obstore", "pydantic-core"))


def test_the_daemons_image_installs_nothing_from_an_index_but_by_hash() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    (build,) = re.findall(r"^FROM \S+ AS build\n(.*?)^FROM ", text, re.MULTILINE | re.DOTALL)
    (daemon,) = re.findall(r"^FROM \S+ AS daemon\n(.*)", text, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"-m pip (?:install|wheel|download)[^&\n]*", build)
    assert len(commands) == 4
    assert all("--require-hashes" in command or "--no-index" in command for command in commands)
    assert {word for command in commands for word in command.split() if word.endswith(".lock")} == {
        *("requirements/image.lock", "requirements/build.lock"),
    }
    assert "pip install" not in daemon
    assert "--no-build-isolation" in build


@pytest.mark.parametrize("name", ["image", "build"])
def test_a_lock_names_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    assert "://" not in text
    assert "index" not in text

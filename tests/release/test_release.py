"""What ``make dist`` makes, and that a machine with nothing but Python gets from it what the quickstart shows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from kit.doc_blocks import blocks
from kit.llama import save_adapter, save_model, tiny_llama

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READY_SECONDS = 30

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]  # installs from a registry, perhaps on a busy machine


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [ROOT / "scripts" / "dist", out],
        env={**_bare_environment(), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def _bare_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("WARMSHELF_", "PYTHON"))}


def only(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


def test_there_is_one_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "warmshelf" / "Chart.yaml").read_text())
    assert {chart["version"], str(chart["appVersion"])} == {PROJECT["version"]}
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(PROJECT['version'])})\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )


def test_the_wheel_is_the_client_and_the_daemon_typed_and_found_by_engines(dist: Path) -> None:
    with ZipFile(only(dist, "*.whl")) as wheel:
        names = wheel.namelist()
        entries = wheel.read(next(name for name in names if name.endswith("/entry_points.txt"))).decode()
        metadata = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {name.partition("/")[0] for name in names} == {
        "warmshelf",
        "warmshelfd",
        f"warmshelf-{PROJECT['version']}.dist-info",
    }
    assert {"warmshelf/py.typed", "warmshelfd/py.typed", "warmshelf/v1/lease_pb2.pyi"} <= {*names}
    assert re.findall(r"^\[(.*)\]$", entries, re.MULTILINE) == [
        *("console_scripts", "sglang.srt.plugins", "vllm.general_plugins"),
    ]
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert sorted(needed) == ["crc32c", "googleapis-common-protos", "grpcio", "protobuf"]


def test_the_bill_of_materials_has_all_that_the_daemon_brings(dist: Path) -> None:
    bill = json.loads(only(dist, "*.cdx.json").read_text())
    root = bill["metadata"]["component"]
    assert (bill["bomFormat"], root["name"], root["version"]) == ("CycloneDX", "warmshelf", PROJECT["version"])
    versions = {part["name"].lower(): part.get("version") for part in bill["components"]}
    wanted = {
        "grpcio",
        "protobuf",
        "crc32c",
        "blake3",
        "pydantic",
        "pydantic-settings",
        "structlog",
        "typer",
        "urllib3",
    }
    assert wanted <= versions.keys()
    assert all(versions.values())
    image = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements" / "image.lock").read_text(), re.MULTILINE)
    if sys.version_info[:2] == (3, 11):  # the image's
        assert {name.replace("_", "-"): version for name, version in versions.items()} == dict(image)
    assert not {"torch", "numpy", "pytest", "pip"} & versions.keys()


def test_the_checksums_are_those_of_the_files(dist: Path) -> None:
    lines = [line.split() for line in only(dist, "*.sha256").read_text().splitlines()]
    files = {path.name: path for path in dist.iterdir() if path.suffix != ".sha256"}
    assert {name: digest for digest, name in lines} == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }
    assert len(files) == 3


# --- a clean machine ---------------------------------------------------------------


class Machine:
    """A virtual environment that has nothing, a user without a past, and what he types."""

    def __init__(self, root: Path, arena: Path, wheel: Path) -> None:
        self.root = root
        self.wheel = wheel
        self.bin = root / "venv" / "bin"
        self.environment: Mapping[str, str] = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(root / "home"),
            "XDG_RUNTIME_DIR": str(root / "run"),
            **{name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_")) or "proxy" in name},
        }
        self.daemon: subprocess.Popen[str] | None = None
        self._of_daemon = {**self.environment, "WARMSHELF_ARENA": str(arena), "WARMSHELF_BUDGET": "64MiB"}
        for name in ("home", "run"):
            (root / name).mkdir(mode=0o700)
        subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)

    def type(self, line: str) -> str:
        words = [re.sub(r"^(file://)?/models\b", rf"\1{self.root}/models", word) for word in shlex.split(line)]
        if words[0] == "warmshelfd":
            self._start(words)
            return ""
        return self.run([word.replace(".[", f"{self.wheel}[") for word in words])

    def run(self, words: list[str]) -> str:
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.root / "home",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def _start(self, words: list[str]) -> None:
        self.daemon = subprocess.Popen(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.root / "home",
            env=self._of_daemon,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.daemon.stdout is not None
        assert select.select([self.daemon.stdout], [], [], READY_SECONDS)[0]
        assert " ready: " in self.daemon.stdout.readline()


@pytest.fixture
def machine(dist: Path, tmp_path: Path) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Machine(tmp_path, Path(arena), only(dist, "*.whl"))
        yield it
        if it.daemon is not None:
            it.daemon.send_signal(signal.SIGTERM)
            assert it.daemon.wait(READY_SECONDS) == 0
            assert it.daemon.stdout is not None
            it.daemon.stdout.close()


def test_the_quickstart_runs_on_a_machine_that_has_only_python(machine: Machine) -> None:
    base = tiny_llama()
    save_model(base, machine.root / "models" / "base")
    save_adapter(base, machine.root / "models" / "support")
    printed = []
    for block in blocks():
        if block.page == "docs/quickstart.md" and block.language == "python":
            printed.append(machine.run(["python", "-c", block.text]))
        elif block.page == "docs/quickstart.md":
            printed += [machine.type(line) for line in block.commands]
    assert "mapped 12 LORA\n" in printed
    assert machine.run(["python", "-c", "import importlib.util as u; print(u.find_spec('torch'))"]) == "None\n"

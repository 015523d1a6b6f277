"""The daemon without Kubernetes: units of systemd, and a compose file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from kit import judges
from kit.chart import ROOT
from warmshelfd.config import parse

UNITS = ROOT / "deploy" / "systemd"
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
EXPOSURE_MAX = 20
"""In tenths, on systemd's scale from 0, safe, to 100."""


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """The units as they are, but for the place of the program."""
    for path in UNITS.iterdir():
        (tmp_path / path.name).write_text(
            re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", path.read_text())
        )
    return [str(tmp_path / path.name) for path in UNITS.iterdir()]


def test_systemd_understands_the_units(units: list[str]) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_shut_in(units: list[str]) -> None:
    service = next(one for one in units if one.endswith(".service"))
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", service]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_daemon_understands_the_environment_of_the_service() -> None:
    text = (UNITS / "warmshelfd.service").read_text()
    environ = dict(line.split("=", 1) for line in re.findall(r"(?m)^Environment=(.*)$", text))
    settings, warnings = parse([], {"HOME": "/nowhere", **environ})
    assert warnings == []
    where = re.search(r"(?m)^Where=(.*)$", (UNITS / "mnt-warmshelf.mount").read_text())
    assert where is not None
    assert os.path.dirname(settings.arena) == where[1]


def test_the_compose_file_is_one() -> None:
    judge = jsonschema.Draft201909Validator(judges.compose_schema())
    assert list(judge.iter_errors(COMPOSE)) == []
    assert not judge.is_valid({"services": {"warmshelf": {"memory": "1g"}}})


def test_the_daemon_of_the_compose_file_fits_its_limits() -> None:
    service = COMPOSE["services"]["warmshelf"]
    image = {"WARMSHELF_LISTEN": "unix:///run/warmshelf/api.sock"}
    settings, warnings = parse(service["command"], {"HOME": "/nowhere", **image, **service["environment"]})
    assert warnings == []
    volume = int(re.search(r"size=(\d+)m", COMPOSE["volumes"]["arena"]["driver_opts"]["o"])[1]) << 20  # type: ignore[index]
    assert settings.budget is not None
    assert settings.budget < volume
    assert volume + settings.reserve_bytes <= int(service["mem_limit"].removesuffix("m")) << 20


def test_workers_of_the_compose_file_have_the_daemons_user_and_read_only_weights() -> None:
    daemon, worker = COMPOSE["services"]["warmshelf"], COMPOSE["services"]["worker"]
    assert worker["user"] == daemon["user"]
    assert worker["volumes"] == ["arena:/run/warmshelf:ro"]

"""benchmarks/gpu.py without a GPU: what it says then, and that its code measures every row on a fake device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, report
from benchmarks.context import QUICK, Context
from kit.fake_device import FakeRuntime

needs_none = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here: nothing is skipped")


class PlainDevice:
    """Memory of the host in the place of a device."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.runtimes: list[FakeRuntime] = []

    def runtime(self) -> Any:
        self.runtimes.append(FakeRuntime(**self.options))
        return self.runtimes[-1]

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def copy(self, tensors: gpu.Tensors) -> gpu.Tensors:
        return {name: tensor.clone() for name, tensor in tensors.items()}


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
    with pytest.raises(SystemExit) as caught:
        sys.exit(gpu.main())
    return int(str(caught.value.code))


@needs_none
def test_without_a_device_it_says_so_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(monkeypatch, "--out", str(tmp_path / "out")) == 0
    assert capsys.readouterr().out == "benchmarks.gpu: skipped: torch sees no CUDA device here\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("device", "reason"), [("cpu", "cpu is no CUDA device"), ("gpu7", "no device: gpu7")])
def test_a_device_that_is_none_is_a_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str, reason: str
) -> None:
    assert main(monkeypatch, "--device", device) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.e2e
def test_every_row_is_measured_and_the_daemons_death_changes_no_bit(tmp_path: Path) -> None:
    device = PlainDevice()
    rows = {row.key: row for row in gpu.measure(Context(QUICK, tmp_path), device)}
    assert [*rows] == [
        *("gpu.pinned", "gpu.pin_and_copy", "gpu.pageable", "gpu.registered"),
        *("gpu.registers", "gpu.registration", "gpu.killed"),
    ]
    assert (rows["gpu.registers"].ratio, rows["gpu.registers"].note) == (1, "")
    assert (rows["gpu.killed"].reached, rows["gpu.killed"].ratio) == (True, 1)
    assert not any(runtime.registered for runtime in device.runtimes)
    report.write(tmp_path / "gpu.json", list(rows.values()), report.Run("", {}, quick=True))
    assert {row["ours"]["unit"] for row in json.loads((tmp_path / "gpu.json").read_text())["rows"]} >= {"GB/s", "s"}
    assert report.table(list(rows.values())).row_count == len(rows)


@pytest.mark.e2e
def test_where_nothing_can_be_registered_that_is_a_row_with_the_reason(tmp_path: Path) -> None:
    rows = {row.key: row for row in gpu.measure(Context(QUICK, tmp_path), PlainDevice(reads_read_only=False))}
    assert "cannot read memory that is mapped read-only" in rows["gpu.registers"].note
    assert rows["gpu.registers"].ratio == 0
    assert not {"gpu.registered", "gpu.registration"} & rows.keys()

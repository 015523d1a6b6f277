"""The load format: without a daemon, with a broken base, and with options that cannot be.

One engine for all: it starts without a daemon, and loads other artifacts into a second model later.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.processes import Daemon
from kit.vllm_processes import BASE, Answers, EngineFailed, EngineProcess, Files

NOWHERE = "unix:///nowhere/api.sock"
LACKING = "model.layers.7.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., EngineProcess], files: Files) -> EngineProcess:
    """An engine whose environment names no daemon that is there."""
    it = start_engine(NOWHERE)
    extra = {"artifact_id": BASE, "fallback": True, "wait_seconds": 0.5}
    it.ask("make", model=str(files.base), load_format="warmshelf", model_loader_extra_config=extra)
    return it


@pytest.fixture(scope="module")
def digest_from_disk(engine: EngineProcess, files: Files) -> str:
    """Of every parameter, as vLLM loads it from the files."""
    digest = engine.ask("load", directory=str(files.base), load_format="auto")
    assert isinstance(digest, str)
    return digest


def test_without_a_daemon_the_files_are_loaded_and_one_warning_says_so(
    engine: EngineProcess, from_disk: Answers, files: Files
) -> None:
    assert engine.ask("answer") == from_disk.base
    (warning,) = engine.lines_with("loading the files of")
    assert "DAEMON_UNREACHABLE" in warning
    assert str(files.base) in warning


def test_without_a_daemon_and_without_fallback_it_fails(engine: EngineProcess, prepared: Path) -> None:
    with pytest.raises(EngineFailed, match="DAEMON_UNREACHABLE: no daemon answers at unix:///nowhere"):
        engine.ask("load", directory=str(prepared), wait_seconds=0.5)


def test_every_parameter_is_as_from_disk_also_when_loaded_again(
    engine: EngineProcess, daemon: Daemon, prepared: Path, digest_from_disk: str
) -> None:
    """The address stands in the extra config: the environment's is of nobody."""
    for _ in range(2):
        digest = engine.ask("load", directory=str(prepared), address=daemon.address, arena=str(daemon.arena))
        assert digest == digest_from_disk
    with daemon.connect() as shelf:
        assert shelf.leases() == []


def test_a_streamed_base_is_the_same(
    engine: EngineProcess, daemon: Daemon, prepared: Path, digest_from_disk: str
) -> None:
    assert engine.ask("load", directory=str(prepared), address=daemon.tcp_address) == digest_from_disk


def test_a_base_without_some_tensor_is_refused_by_the_parameters_name(
    engine: EngineProcess, daemon: Daemon, files: Files
) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - brings torch

    tensors = load_file(files.base / "model.safetensors")
    del tensors[LACKING]
    lacking = files.mine / "lacking"
    lacking.mkdir()
    save_file(tensors, lacking / "model.safetensors")
    shutil.copy(files.base / "config.json", lacking)
    with daemon.connect() as shelf:
        shelf.register("lacking", lacking)
    where = {"address": daemon.address, "artifact_id": "lacking"}
    with pytest.raises(EngineFailed, match=rf"MALFORMED_ARTIFACT.*nothing for 1 of .* parameters: {LACKING}"):
        engine.ask("load", directory=str(files.base), **where)
    with daemon.connect() as shelf:
        assert shelf.leases() == []
        shelf.remove("lacking")


def test_an_adapter_is_no_base(engine: EngineProcess, daemon: Daemon, files: Files) -> None:
    with pytest.raises(EngineFailed, match="'ad/paris' is an adapter"):
        engine.ask("load", directory=str(files.base), address=daemon.address, artifact_id="ad/paris")


def test_an_unknown_base_fails_even_where_fallback_is_allowed(
    engine: EngineProcess, daemon: Daemon, files: Files
) -> None:
    with pytest.raises(EngineFailed, match="ARTIFACT_NOT_FOUND"):
        engine.ask("load", directory=str(files.base), address=daemon.address, artifact_id="nobody", fallback=True)


def test_another_digest_than_expected_is_refused(engine: EngineProcess, daemon: Daemon, prepared: Path) -> None:
    with pytest.raises(EngineFailed, match="DIGEST_MISMATCH"):
        engine.ask("load", directory=str(prepared), address=daemon.address, digest="blake3:" + "0" * 64)


def test_a_directory_of_another_generations_config_is_refused(
    engine: EngineProcess, daemon: Daemon, prepared: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(prepared, tmp_path / "old"))
    marker = json.loads((old / "warmshelf.json").read_text())
    (old / "warmshelf.json").write_text(json.dumps({**marker, "digest": "", "config_sha256": "0" * 64}))
    with pytest.raises(EngineFailed, match=r"has another config\.json: run 'warmshelf prepare-model' again"):
        engine.ask("load", directory=str(old), address=daemon.address)


def test_a_directory_prepared_from_another_base_is_refused(
    engine: EngineProcess, daemon: Daemon, prepared: Path
) -> None:
    with pytest.raises(EngineFailed, match=rf"artifact_id says 'other', but .* was prepared from '{BASE}'"):
        engine.ask("load", directory=str(prepared), address=daemon.address, artifact_id="other")


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"adress": "x"}, "no option 'adress'; there are artifact_id, address"),
        ({"fallback": "yes"}, "fallback must be bool, got 'yes'"),
        ({"wait_seconds": -1}, "wait_seconds must be a positive number, got -1"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    engine: EngineProcess, prepared: Path, extra: dict[str, object], text: str
) -> None:
    with pytest.raises(EngineFailed, match=text):
        engine.ask("load", directory=str(prepared), **extra)


def test_a_directory_that_says_nothing_needs_an_artifact_id(engine: EngineProcess, files: Files) -> None:
    with pytest.raises(EngineFailed, match=r"no artifact: .* was not made by 'warmshelf prepare-model'"):
        engine.ask("load", directory=str(files.base))

"""The plugin in SGLang's own registry of hooks, with a real daemon: what an engine would be given, and when."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import warmshelf
import warmshelf.sglang
from kit.llama import save_adapter, save_model, tiny_llama
from kit.processes import Daemon, eventually
from kit.sglang_engine import Engine, LoRAManager, LoRARef, install
from warmshelf import _engine_shelf
from warmshelf._adapter_names import name_of
from warmshelf.errors import DaemonUnreachable, FeatureUnsupported, InvalidRequest
from warmshelf.prepare import prepare_directory

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("sglang")
    base = tiny_llama()
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(root, Path(arena), root / "models")
        save_model(base, it.models / "base")
        save_model(base, it.models / "other")
        save_adapter(base, it.models / "plain", target_modules=["q_proj", "v_proj", "o_proj"])
        save_adapter(base, it.models / "newer", seed=9)
        save_adapter(base, it.models / "dora", use_dora=True)
        it.start("--budget", "64MiB")
        with it.connect() as shelf:
            for name in ("base", "other"):
                shelf.register(f"acme/{name}", it.models / name)
            for name, of in (("plain", "base"), ("newer", "base"), ("dora", "base"), ("foreign", "other")):
                files = it.models / (name if name != "foreign" else "plain")
                shelf.register(f"acme/{name}", files, base=f"acme/{of}")
        yield it
        it.kill(signal.SIGTERM)
        it.check()


@pytest.fixture
def shelf(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[warmshelf.Shelf]:
    monkeypatch.setenv("WARMSHELF_ADDRESS", daemon.address)
    _engine_shelf._shelf.cache_clear()
    with daemon.connect() as it:
        yield it
        eventually(lambda: not it.leases(), "every lease is released")
    _engine_shelf._shelf.cache_clear()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's registry after its plugins were loaded."""
    monkeypatch.setattr(warmshelf.sglang, "_registered", [])
    hooks = install(monkeypatch)
    warmshelf.sglang.register()
    warmshelf.sglang.register()
    hooks.apply_hooks()
    return hooks


def of(module: str, name: str) -> Any:
    return getattr(sys.modules[f"sglang.srt.{module}"], name)


def manager() -> Any:
    return of("lora.lora_manager", "LoRAManager")()


def path_of(shelf: warmshelf.Shelf, artifact_id: str) -> str:
    list(shelf.load(artifact_id))
    return name_of(shelf.get(artifact_id)).path


def server(directory: Path, rank_max: int | None = None) -> Any:
    arguments = SimpleNamespace(model_path=str(directory), max_lora_rank=rank_max)
    return of("managers.tokenizer_manager", "TokenizerManager")(arguments, manager())


def is_of(given: tuple[dict[str, Any], dict[str, Any]], files: Path) -> bool:
    tensors, config = given
    expected = load_file(files / "adapter_model.safetensors")
    assert config == json.loads((files / "adapter_config.json").read_bytes())
    return tensors.keys() == expected.keys() and all(torch.equal(tensors[name], expected[name]) for name in expected)


# --- adapters ------------------------------------------------------------------


def test_an_adapter_of_the_shelf_is_given_as_its_files_have_it(
    shelf: warmshelf.Shelf, registry: Any, daemon: Daemon
) -> None:
    ranks = [manager(), manager()]
    for rank in ranks:
        assert rank._load_lora_adapter(LoRARef("a", path_of(shelf, "acme/plain"))).success
    assert not shelf.leases()  # they end with the call
    shelf.evict("acme/plain")
    assert all(is_of(rank.given["a"], daemon.models / "plain") for rank in ranks)
    next(iter(ranks[0].given["a"][0].values())).zero_()  # what a rank writes stays with it
    assert is_of(ranks[1].given["a"], daemon.models / "plain")
    assert not any(rank.paths for rank in ranks)


def test_any_other_path_is_left_to_sglang(registry: Any) -> None:
    it = manager()
    assert it._load_lora_adapter(LoRARef("a", "/models/a")).success
    assert (it.paths, it.given) == (["/models/a"], {})


def test_what_the_shelf_refuses_is_sglangs_own_refusal(shelf: warmshelf.Shelf, registry: Any) -> None:
    cases = {
        path_of(shelf, "acme/dora"): "dora",
        "/run/warmshelf/adapters/acme/plain": "names no generation",
        f"/run/warmshelf/adapters/acme/plain#1-{'0' * 64}": "acme/plain",
        f"/run/warmshelf/adapters/acme/nothing#1-{'0' * 64}": "acme/nothing",
    }
    for path, reason in cases.items():
        it = manager()
        answer = it._load_lora_adapter(LoRARef("a", path))
        assert not answer.success
        assert reason in answer.error_message
        assert not it.given


async def test_a_request_names_an_adapter_by_its_id(
    shelf: warmshelf.Shelf, registry: Any, daemon: Daemon, tmp_path: Path
) -> None:
    it = server(tmp_path, rank_max=4)
    await it._resolve_lora_path(SimpleNamespace(lora_path=["acme/plain", None, "acme/plain"]))
    assert is_of(it.manager.given["acme/plain"], daemon.models / "plain")
    assert not shelf.leases()


async def test_what_was_unloaded_is_loaded_again_as_the_shelf_has_it_then(
    shelf: warmshelf.Shelf, registry: Any, daemon: Daemon, tmp_path: Path
) -> None:
    it, request = server(tmp_path), SimpleNamespace(lora_path="acme/turned")
    shelf.register("acme/turned", daemon.models / "plain", base="acme/base")
    await it._resolve_lora_path(request)
    shelf.register("acme/turned", daemon.models / "newer", base="acme/base", replace=True)
    await it._resolve_lora_path(request)
    assert is_of(it.manager.given["acme/turned"], daemon.models / "plain")  # loaded is loaded
    it.lora_registry.loaded.clear()
    await it._resolve_lora_path(request)
    assert is_of(it.manager.given["acme/turned"], daemon.models / "newer")


async def test_an_adapter_that_sglang_was_given_as_tensors_comes_back_from_the_shelf(
    shelf: warmshelf.Shelf, registry: Any, daemon: Daemon, tmp_path: Path
) -> None:
    it = server(tmp_path)
    it.lora_ref_cache["acme/plain"] = LoRARef("acme/plain", "__tensor__")
    await it._resolve_lora_path(SimpleNamespace(lora_path="acme/plain"))
    assert is_of(it.manager.given["acme/plain"], daemon.models / "plain")


async def test_an_adapter_of_files_keeps_its_name(shelf: warmshelf.Shelf, registry: Any, tmp_path: Path) -> None:
    it = server(tmp_path)
    it.lora_ref_cache["acme/plain"] = LoRARef("acme/plain", "/models/of/mine")
    await it._resolve_lora_path(SimpleNamespace(lora_path="acme/plain"))
    assert (it.manager.paths, it.manager.given) == (["/models/of/mine"], {})


@pytest.mark.parametrize(
    ("name", "rank_max", "reason"),
    [
        ("acme/nothing", None, "never been loaded: acme/nothing"),
        ("no ID", None, "never been loaded: no ID"),
        ("acme/dora", None, "dora"),
        ("acme/plain", 2, "rank 4"),
        ("acme/foreign", None, "is for base 'acme/other', this engine serves 'acme/base'"),
        ("acme/base", None, "is no adapter"),
    ],
)
async def test_a_request_that_cannot_be_served_is_told_why(
    shelf: warmshelf.Shelf, registry: Any, tmp_path: Path, name: str, rank_max: int | None, reason: str
) -> None:
    with shelf.acquire("acme/base") as lease:
        prepare_directory(lease, tmp_path)
    it = server(tmp_path, rank_max)
    with pytest.raises(ValueError, match=reason):
        await it._resolve_lora_path(SimpleNamespace(lora_path=name))
    assert not it.manager.given


async def test_without_a_daemon_a_request_fails_and_blames_nobody(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMSHELF_ADDRESS", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(warmshelf.sglang, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(warmshelf.sglang, "RESOLVE_SECONDS", 0.2)
    _engine_shelf._shelf.cache_clear()
    with pytest.raises(DaemonUnreachable):
        await server(tmp_path)._resolve_lora_path(SimpleNamespace(lora_path="acme/plain"))
    _engine_shelf._shelf.cache_clear()


def test_an_engine_of_this_process_takes_tensors(shelf: warmshelf.Shelf, daemon: Daemon) -> None:
    engine = Engine()
    warmshelf.sglang.load_adapter(engine, shelf, "acme/plain")
    assert not shelf.leases()
    assert is_of(engine.given["acme/plain"], daemon.models / "plain")


def test_an_engine_that_refuses_is_an_error_with_its_reason(shelf: warmshelf.Shelf) -> None:
    with pytest.raises(InvalidRequest, match="'acme/plain': rank 4 is incompatible"):
        warmshelf.sglang.load_adapter(Engine(refuses="rank 4 is incompatible"), shelf, "acme/plain")
    with pytest.raises(FeatureUnsupported, match="dora"):
        warmshelf.sglang.load_adapter(engine := Engine(), shelf, "acme/dora")
    with pytest.raises(InvalidRequest, match="is no adapter"):
        warmshelf.sglang.load_adapter(engine, shelf, "acme/base")
    assert not engine.given


# --- base weights ----------------------------------------------------------------


def test_a_prepared_directory_is_loaded_from_the_shelf(
    shelf: warmshelf.Shelf, registry: Any, daemon: Daemon, tmp_path: Path
) -> None:
    with shelf.acquire("acme/base") as lease:
        prepare_directory(lease, tmp_path)
    loader = of("model_loader.loader", "DefaultModelLoader")()
    source = SimpleNamespace(model_or_path=str(tmp_path), prefix="language_model.")
    weights = loader._get_weights_iterator(source, startup_prefetch_started=True)
    found = {name: tensor.clone() for name, tensor in weights}
    expected = load_file(daemon.models / "base" / "model.safetensors")
    assert found.keys() == {f"language_model.{name}" for name in expected}
    assert all(torch.equal(found[f"language_model.{name}"], expected[name]) for name in expected)
    loader.load_config.draft_model_idx = 1
    assert {name for name, _ in loader._get_weights_iterator(source)} == {f"language_model.1.{n}" for n in expected}


def test_any_other_directory_is_left_to_sglang(registry: Any, tmp_path: Path) -> None:
    loader = of("model_loader.loader", "DefaultModelLoader")()
    for name in (str(tmp_path), "org/model"):
        source = SimpleNamespace(model_or_path=name, prefix="")
        assert [*loader._get_weights_iterator(source)] == [("from.disk", name)]


def test_a_directory_of_another_config_is_refused_before_a_tensor_moves(
    shelf: warmshelf.Shelf, registry: Any, tmp_path: Path
) -> None:
    with shelf.acquire("acme/base") as lease:
        prepare_directory(lease, tmp_path)
    marker = tmp_path / "warmshelf.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "digest": "", "config_sha256": "0"}))
    loader = of("model_loader.loader", "DefaultModelLoader")()
    with pytest.raises(InvalidRequest, match="another config"):
        loader._get_weights_iterator(SimpleNamespace(model_or_path=str(tmp_path), prefix=""))


# --- another SGLang ----------------------------------------------------------------


def test_a_method_that_has_changed_is_not_hooked_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = install(monkeypatch)
    monkeypatch.setattr(warmshelf.sglang, "_registered", [])
    monkeypatch.setattr(
        of("lora.lora_manager", "LoRAManager"), "create_lora_update_result", lambda self, ok: None, raising=True
    )
    monkeypatch.delattr(of("model_loader.loader", "DefaultModelLoader"), "_filter_mtp_weights")
    monkeypatch.delattr("kit.sglang_engine.DefaultModelLoader._filter_mtp_weights")
    with caplog.at_level(logging.WARNING):
        warmshelf.sglang.register()
    hooks.apply_hooks()
    assert [*hooks._hooks] == ["sglang.srt.managers.tokenizer_manager.TokenizerManager._resolve_lora_path"]
    assert [("create_lora_update_result" in r.message, "_filter_mtp_weights" in r.message) for r in caplog.records] == [
        (True, False),
        (False, True),
    ]
    it: LoRAManager = manager()
    assert it._load_lora_adapter.__func__ is LoRAManager._load_lora_adapter  # type: ignore[attr-defined]


def test_importing_the_plugin_needs_neither_sglang_nor_torch() -> None:
    code = "import sys, warmshelf.sglang; assert not {'torch', 'sglang', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)

"""vLLM inside one process, started from a directory without weights and served from the shelf.

The tests share an engine and stand in the order in which they use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.processes import Daemon, eventually
from kit.vllm_processes import ADAPTERS, BASE, LORA, Answers, EngineFailed, EngineProcess, Files, write_adapter
from warmshelf import ArtifactState

HEAVY = {"numpy", "torch", "transformers", "vllm"}


@pytest.fixture(scope="module")
def bare(daemon: Daemon, start_engine: Callable[..., EngineProcess]) -> EngineProcess:
    """The process of an engine that is still to be made."""
    return start_engine(daemon.address)


@pytest.fixture(scope="module")
def engine(bare: EngineProcess, prepared: Path) -> EngineProcess:
    bare.ask("make", model=str(prepared), load_format="warmshelf", **LORA)
    return bare


def leased(daemon: Daemon) -> list[str]:
    with daemon.connect() as shelf:
        return sorted(lease.artifact_id for lease in shelf.leases())


def sha256_of_segments(daemon: Daemon) -> dict[str, str]:
    return {name: hashlib.sha256((daemon.arena / name).read_bytes()).hexdigest() for name in daemon.segments()}


def test_importing_the_plugin_brings_nothing_heavy(bare: EngineProcess) -> None:
    modules = set(bare.ask("modules_after_import"))
    assert "grpc" in modules
    assert modules & HEAVY == set()


def test_registering_twice_changes_nothing_and_opens_no_channel(bare: EngineProcess) -> None:
    assert bare.ask("register_twice") == [True, "WarmshelfLoader", None]


def test_a_fork_before_the_first_call_connects_by_itself(bare: EngineProcess) -> None:
    assert bare.ask("get_in_a_fork", adapter="ad/paris") == ["ad/paris", "ad/paris"]


def test_the_base_answers_as_from_disk_and_is_released_after_the_upload(
    engine: EngineProcess, daemon: Daemon, from_disk: Answers
) -> None:
    assert engine.ask("answer") == from_disk.base
    assert leased(daemon) == []
    assert engine.ask("mapped", arena=str(daemon.arena)) == 0


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_answers_as_from_disk(engine: EngineProcess, daemon: Daemon, from_disk: Answers, name: str) -> None:
    found = engine.ask("first_answer", adapter=f"ad/{name}")
    assert found["tokens"] == from_disk.adapters[name]
    assert found["path"].startswith(f"/run/warmshelf/adapters/ad/{name}#1-")
    assert not Path(found["path"]).exists()


def test_leases_are_on_what_the_engine_keeps_and_on_nothing_else(engine: EngineProcess, daemon: Daemon) -> None:
    for name in ADAPTERS:
        engine.ask("answer", adapter=f"ad/{name}")
    kept = ["ad/madrid", "ad/rome"]  # of max_cpu_loras, the last two
    eventually(lambda: leased(daemon) == kept, "the lease on the adapter that the engine dropped has ended")
    assert engine.ask("mapped", arena=str(daemon.arena)) == 2


@pytest.mark.parametrize(("name", "dtype"), [("paris", "float32"), ("rome", "bfloat16"), ("madrid", "bfloat16")])
def test_scaling_an_adapter_where_it_is_mapped_leaves_its_segment_as_it_was(
    engine: EngineProcess, daemon: Daemon, name: str, dtype: str
) -> None:
    before = sha256_of_segments(daemon)
    assert engine.ask("scale", adapter=f"ad/{name}", dtype=dtype)
    assert sha256_of_segments(daemon) == before
    with daemon.connect() as shelf:
        artifact = shelf.get(f"ad/{name}")
        assert shelf.verify(f"ad/{name}") > 0
        with shelf.acquire(f"ad/{name}", expected_digest=artifact.digest):
            pass


def test_numbers_are_positive_and_no_two_adapters_share_one(engine: EngineProcess) -> None:
    """B03."""
    names = [f"ad/{name}" for name in ADAPTERS]
    numbers = engine.ask("numbers", adapters=names)
    assert engine.ask("numbers", adapters=names) == numbers
    assert len(set(numbers)) == len(names)
    assert all(0 < number < 1 << 31 for number in numbers)


def test_a_weight_reload_leases_anew_and_brings_every_parameter_back(
    engine: EngineProcess, daemon: Daemon, from_disk: Answers
) -> None:
    engine.ask("spoil")
    assert engine.ask("answer") != from_disk.base
    engine.ask("reload")
    assert engine.ask("answer") == from_disk.base
    assert BASE not in leased(daemon)


def test_a_new_generation_has_another_name_and_number(
    engine: EngineProcess, daemon: Daemon, files: Files, from_disk: Answers
) -> None:
    """B01: what was computed with the old weights lies in the prefix cache under the old name."""
    with daemon.connect() as shelf:
        shelf.register("ad/changing", files.adapters / "paris", base=BASE)
    old = engine.ask("first_answer", adapter="ad/changing")
    (old_number,) = engine.ask("numbers", adapters=["ad/changing"])
    with daemon.connect() as shelf:
        shelf.register("ad/changing", files.adapters / "rome", base=BASE, replace=True)
    new = engine.ask("first_answer", adapter="ad/changing")
    assert (old["tokens"], new["tokens"]) == (from_disk.adapters["paris"], from_disk.adapters["rome"])
    assert old["name"] != new["name"]
    assert old["path"] != new["path"]
    assert engine.ask("numbers", adapters=["ad/changing"]) != [old_number]


def test_an_old_generation_is_refused_and_the_engine_goes_on(engine: EngineProcess, from_disk: Answers) -> None:
    gone = "/run/warmshelf/adapters/ad/rome#1-" + "0" * 64
    with pytest.raises(EngineFailed, match="DIGEST_MISMATCH"):
        engine.ask("add", adapter="gone", path=gone)
    with pytest.raises(EngineFailed, match="names no generation"):
        engine.ask("add", adapter="gone", path="/run/warmshelf/adapters/ad/rome")
    assert engine.ask("answer", adapter="ad/rome") == from_disk.adapters["rome"]


def test_modules_that_the_model_lacks_are_refused_by_name(engine: EngineProcess, daemon: Daemon, files: Files) -> None:
    with daemon.connect() as shelf:
        shelf.register("ad/foreign", write_adapter(files.mine / "foreign", module="model.layers.0.mlp.experts_gate"))
    with pytest.raises(EngineFailed, match=r"BASE_MISMATCH.*model\.layers\.0\.mlp\.experts_gate"):
        engine.ask("first_answer", adapter="ad/foreign")


def test_an_adapter_that_the_worker_refuses_stays_leased_to_nobody(
    engine: EngineProcess, daemon: Daemon, files: Files
) -> None:
    with daemon.connect() as shelf:
        shelf.register("ad/wide", write_adapter(files.mine / "wide-too", 32), base=BASE)
    with pytest.raises(EngineFailed, match="LoRA rank 32 is greater than max_lora_rank 16"):
        engine.ask("first_answer", adapter="ad/wide")
    eventually(lambda: "ad/wide" not in leased(daemon), "its lease has ended")


def test_a_config_that_vllm_cannot_honour_is_named_before_anything_is_leased(
    engine: EngineProcess, daemon: Daemon, files: Files
) -> None:
    with daemon.connect() as shelf:
        shelf.register("ad/dora", write_adapter(files.mine / "dora-too", use_dora=True), base=BASE)
        with pytest.raises(EngineFailed, match=r"FEATURE_UNSUPPORTED.*dora"):
            engine.ask("first_answer", adapter="ad/dora")
        assert shelf.get("ad/dora").state is ArtifactState.REGISTERED


def test_an_adapter_survives_the_daemons_death_and_its_restart(
    engine: EngineProcess, daemon: Daemon, options: tuple[str, ...], from_disk: Answers
) -> None:
    engine.ask("answer", adapter="ad/rome")
    daemon.kill()
    assert engine.ask("answer", adapter="ad/rome", known=True) == from_disk.adapters["rome"]
    daemon.start(*options)
    for name in ADAPTERS:
        assert engine.ask("answer", adapter=f"ad/{name}") == from_disk.adapters[name]

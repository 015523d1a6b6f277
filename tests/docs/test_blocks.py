"""Every block of code in the documents is run, here or by a test that is named; the few that cannot be are listed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warmshelf
from kit.doc_blocks import ROOT, Block, Reader, blocks, check_toml
from kit.llama import save_adapter, save_model, tiny_llama
from kit.processes import Daemon

HERE = {
    ("docs/formats.md", "console"),
    ("docs/moving-from-tensorizer.md", "console"),
    ("docs/push.md", "python"),
    ("docs/quickstart.md", "console"),
    ("docs/quickstart.md", "python"),
    ("docs/sharding.md", "python"),
    ("docs/sizing.md", "console"),
    ("docs/sizing.md", "python"),
}
"""Whose blocks are run by this module; those of TOML are, on every page."""

ELSEWHERE = {
    ("README.md", "console"): "tests/docs/test_readme_works.py",
    ("README.md", "python"): "tests/docs/test_readme_works.py",
    ("docs/adapter-bank.md", "python"): "tests/docs/test_adapter_bank_example.py",
    ("docs/engines.md", "python"): "tests/docs/test_engines_page.py",
    ("docs/kubernetes.md", "yaml"): "tests/deploy/test_chart.py",  # and test_guide.py beside it
    ("docs/vllm.md", "console"): "tests/vllm/test_server.py",
    ("docs/architecture.md", ""): "tests/docs/test_docs_current.py",
    ("docs/architecture.md", "mermaid"): "tests/docs/test_docs_current.py",
}
"""Which test has the blocks of a page and language."""

_NODES = "takes two nodes and a Redis: tests/fleet does the same"
_REDIS = "takes a Redis with accounts: tests/sources has a real one"
_STORE = "takes a store or a hub: tests/sources has real and local ones"
_CLUSTER = "takes a cluster or an image builder: tests/deploy judges what is applied"
_TARGETS = "runs for minutes; that the targets exist is checked"

_ACL = (
    "ACL SETUSER warmshelf on >PASSWORD ~{warmshelf}:* +ping +select +hget +hmget +hscan +hset +hdel +xread "
    "+xadd +del +watch +unwatch +multi +exec +set +expire +getrange +sadd +srem +srandmember"
)
_NODE = "$ warmshelfd --registry redis://cache:6379/0 --listen 10.0.3.7:50051 --insecure --advertise 10.0.3.7"
_BEFORE = (
    "$ vllm serve /models/base --load-format tensorizer --model-loader-extra-config "
    '\'{"tensorizer_uri": "/models/base-tensors/model.tensors"}\''
)

CANNOT = {
    ("CONTRIBUTING.md", "$ make check test test-vllm"): _TARGETS,
    ("README.md", "$ make demo"): _TARGETS,
    ("README.md", "sources                registry: SQLite"): "a drawing",
    ("docs/benchmarks.md", "$ make bench"): _TARGETS,
    ("docs/benchmarks.md", "$ warmshelf bench acme/base acme/support-lora"): "tests/bench runs the command, on less",
    ("docs/doctor.md", "$ warmshelf doctor             # this node"): "judges the machine: tests/doctor runs both",
    ("docs/doctor.md", '{"level": "warning",'): "the shape of an answer, shortened",
    ("docs/engines.md", "$ warmshelf prepare-model acme/base /tmp/acme-base"): "SGLang needs CUDA",
    ("docs/fleet.md", "$ warmshelfd --registry redis://cache:6379/0            # on every node"): _NODES,
    ("docs/fleet.md", f"{_NODE} --node-zone rack-3"): _NODES,
    ("docs/fleet.md", f"{_NODE} --neighbours 10.0.0.0/16"): _NODES,
    ("docs/fleet.md", "$ warmshelf list"): _NODES,
    (
        "docs/fleet.md",
        "$ warmshelf alias set prod/support acme/support@v6",
    ): "shows times; tests/fleet/test_aliases.py has the calls",
    ("docs/fleet.md", _ACL): _REDIS,
    ("docs/kubernetes.md", "$ docker build -t registry.example/warmshelf:0.1.0 ."): _CLUSTER,
    ("docs/kubernetes.md", "$ kubectl create namespace warmshelf"): _CLUSTER,
    (
        "docs/kubernetes.md",
        "# sh prepare-node.sh mount /var/lib/warmshelf 68736253952 10001 10001 huge=within_size,noswap",
    ): _CLUSTER,
    ("docs/kubernetes.md", "$ kubectl delete -f deploy/kubernetes/node.yaml"): _CLUSTER,
    ("docs/memory.md", "mount -t tmpfs -o huge=always,size=64g,mode=0700,uid=1000 tmpfs /mnt/warmshelf"): (
        "takes root; the benchmarks mount theirs so"
    ),
    ("docs/metrics.md", "$ warmshelfd --http 127.0.0.1:9464"): "takes a port that others may have; it is parsed",
    ("docs/moving-from-tensorizer.md", _BEFORE): "vLLM's own, and not on CPUs",
    ("docs/moving-from-tensorizer.md", "$ vllm serve /tmp/acme-base --load-format warmshelf"): "tests/vllm starts one",
    ("docs/push.md", "$ cat adapters.jsonl"): "a line for an S3 store; tests/e2e/test_register_many.py registers many",
    ("docs/access.md", "import warmshelf"): "takes certificates: tests/e2e/test_secured_client.py makes some",
    ("docs/sources-hub.md", "$ pip install 'warmshelf[daemon,hub]'"): _STORE,
    ("docs/sources-hub.md", "$ warmshelfd --allow-source file:///data/hf-cache"): _STORE,
    ("docs/sources-redis.md", "$ warmshelfd --allow-source redis://cache:6379/0/loras"): _REDIS,
    (
        "docs/sources-redis.md",
        "ACL SETUSER reader on >... ~warmshelf:* ~loras/* +select +type +hmget +strlen +getrange",
    ): (_REDIS),
    ("docs/sources-redis.md", "from warmshelf.redis_store import write_directory"): _REDIS,
    ("docs/sources-s3.md", "$ pip install 'warmshelf[daemon,s3]'"): _STORE,
    (
        "docs/tracing.md",
        "$ pip install 'warmshelf[daemon,otel]'",
    ): "takes a collector: tests/e2e/test_traces.py has one",
    ("docs/vllm.md", "from vllm import LLM"): "takes vLLM: tests/vllm/test_engine.py has the same calls",
}
"""Blocks by page and first line, and why they cannot be run by a test."""

BLOCKS = list(blocks())
TOML = [block for block in BLOCKS if block.language == "toml"]


def handled(block: Block) -> list[str]:
    """Return who sees to a block."""
    if (block.page, block.first_line) in CANNOT:
        return ["listed"]
    kind = block.page, block.language
    return [name for name, table in (("here", HERE), ("elsewhere", ELSEWHERE)) if kind in table] + (
        ["toml"] if block.language == "toml" else []
    )


def test_every_block_is_run_by_somebody_or_says_why_not() -> None:
    assert [(block.page, block.first_line) for block in BLOCKS if len(handled(block)) != 1] == []


def test_every_entry_of_the_tables_is_of_a_block_that_there_is() -> None:
    kinds = {(block.page, block.language) for block in BLOCKS}
    assert {*HERE, *ELSEWHERE} <= kinds
    assert CANNOT.keys() <= {(block.page, block.first_line) for block in BLOCKS}


@pytest.mark.parametrize(("kind", "test"), ELSEWHERE.items(), ids=lambda one: "-".join(one) if one else "")
def test_a_test_that_is_named_reads_the_page(kind: tuple[str, str], test: str) -> None:
    assert Path(kind[0]).name in (ROOT / test).read_text()


@pytest.mark.parametrize("block", TOML, ids=lambda block: f"{block.page}: {block.first_line}")
def test_a_block_of_toml_is_taken_by_the_daemon(block: Block, tmp_path: Path) -> None:
    check_toml(block, tmp_path / "block.toml")


# --- pages that are read from top to bottom ---------------------------------------


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Somebody with a base and two adapters, in a process that knows where his daemon is."""
    models, home = tmp_path / "models", tmp_path / "home"
    base = tiny_llama()
    for name in ("base", "llama"):
        save_model(base, models / name)
    save_adapter(base, models / "support")
    save_adapter(base, home / "out" / "lora", seed=2)
    (models / "private").mkdir()
    (home / "models-key").write_bytes(os.urandom(32))
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        daemon = Daemon(tmp_path, Path(arena), models)
        monkeypatch.setenv("WARMSHELF_ADDRESS", daemon.address)
        monkeypatch.chdir(home)
        yield Reader(daemon, home, {"model": base, "config": base.config.to_dict()})
        daemon.kill(signal.SIGTERM)
        daemon.check()


def read(reader: Reader, page: str) -> dict[str, Any]:
    """Run every block of a page that this module runs; start the daemon first if the page does not."""
    mine = [block for block in BLOCKS if block.page == page and handled(block) == ["here"]]
    if not any(line.startswith("warmshelfd") for block in mine for line in block.commands):
        reader.daemon.start("--budget", "64MiB")
    for block in mine:
        reader.run(block)
    return reader.names


def test_quickstart(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    read(reader, "docs/quickstart.md")
    assert capsys.readouterr().out == "mapped 12 LORA\n"
    assert "acme/support" in reader.printed


def test_moving_from_tensorizer(reader: Reader) -> None:
    read(reader, "docs/moving-from-tensorizer.md")
    assert (reader.home / "acme-base" / "config.json").is_file()
    assert (reader.home / "base-again" / "model.safetensors").is_file()


def test_sizing(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    reader.names["warmshelf"] = warmshelf
    reader.daemon.start("--budget", "64MiB")
    with warmshelf.connect() as shelf:
        shelf.register("acme/support", reader.daemon.models / "support")
    for block in BLOCKS:
        if block.page == "docs/sizing.md":
            reader.run(block)
    free, fits, fits_evicting = map(int, capsys.readouterr().out.split())
    assert free > 0
    assert 0 < fits <= fits_evicting


def test_push(reader: Reader) -> None:
    reader.daemon.start("--budget", "64MiB")
    with warmshelf.connect() as shelf:
        reader.names["shelf"] = shelf
        for block in BLOCKS:
            if (block.page, block.language) == ("docs/push.md", "python"):
                reader.run(block)
        with shelf.acquire("acme/fresh-lora") as lease:
            assert len(lease) == 12
        assert shelf.get("acme/fresh-lora").spec.base_id == "acme/fresh"


def test_sharding(reader: Reader) -> None:
    reader.daemon.start("--budget", "64MiB")
    with warmshelf.connect() as shelf:
        shelf.register("acme/llama", reader.daemon.models / "llama")
    (block,) = [block for block in BLOCKS if block.page == "docs/sharding.md"]
    reader.run(block)
    assert reader.names["tensors"]["model.layers.0.mlp.down_proj.weight"].shape == (16, 8)


def test_formats(reader: Reader) -> None:
    read(reader, "docs/formats.md")
    assert (reader.home / "llama" / "model.safetensors").read_bytes()

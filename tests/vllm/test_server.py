"""vLLM's OpenAI server, set up by the very commands of docs/vllm.md: adapters by ``model=<ID>``.

The tests share a server and stand in the order in which they use it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.processes import Daemon, eventually
from kit.vllm_processes import ADAPTERS, BASE, ROOT, Answers, Files, Server, write_adapter
from warmshelf import ArtifactState

QUICKSTART = (ROOT / "docs/vllm.md").read_text().partition("## Quickstart")[2].partition("## Options")[0]
COMMANDS = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", QUICKSTART, re.MULTILINE)]


def commands(program: str) -> list[list[str]]:
    return [words for words in COMMANDS if words[0] == program]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon, files: Files) -> Path:
    """The model's directory after the quickstart's commands of warmshelf."""
    directory = tmp_path_factory.mktemp("quickstart") / "model"
    places = {
        "/models/base": str(files.base),
        "/models/support": str(files.adapters / "paris"),
        "/tmp/acme-base": str(directory),
    }
    for words in commands("warmshelf"):
        command = [places.get(word, word) for word in words[1:]]
        subprocess.run(
            [sys.executable, "-m", "warmshelf.cli", "--address", daemon.address, *command],
            check=True,
            capture_output=True,
        )
    assert not list(directory.glob("*.safetensors"))
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon, shown: Path) -> Iterator[Server]:
    """The quickstart's server; that it may load adapters at run time is exported there too."""
    assert commands("export") == [["export", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"]]
    ((_, _, module, _, _, *options),) = commands("python")
    assert module == "vllm.entrypoints.openai.api_server"
    it = Server(daemon.address, shown, tmp_path_factory.mktemp("server") / "server.log", *options)
    yield it.wait_ready()
    it.end()


def refusal(server: Server, model: str) -> tuple[int, str]:
    status, answer = server.ask(model)
    return status, answer["error"]["message"]


def leased(daemon: Daemon) -> set[str]:
    with daemon.connect() as shelf:
        return {lease.artifact_id for lease in shelf.leases()}


def test_the_quickstarts_requests_are_answered(server: Server) -> None:
    models = []
    for _, url, _, _, _, body in commands("curl"):
        status, answer = server.post(url.removeprefix("http://127.0.0.1:8000"), **json.loads(body))
        assert status == 200
        models.append(answer["model"])
    assert models[0] == "base"
    assert models[1].startswith("acme/support#1-")


def test_one_batch_of_base_and_adapters_mixes_nothing_up(server: Server, from_disk: Answers) -> None:
    """While one slot of four is free: see the traps in docs/vllm.md."""
    models = ["base", "ad/paris", "ad/rome"]
    with ThreadPoolExecutor(len(models)) as pool:
        found = list(pool.map(server.tokens, models))
    assert found == [from_disk.base, from_disk.adapters["paris"], from_disk.adapters["rome"]]


def test_base_and_adapters_answer_by_their_ids_as_from_disk(server: Server, daemon: Daemon, from_disk: Answers) -> None:
    assert server.tokens("base") == from_disk.base
    for name in ADAPTERS:
        assert server.tokens(f"ad/{name}") == from_disk.adapters[name]
    assert leased(daemon) == {"acme/support", *(f"ad/{name}" for name in ADAPTERS)}


def test_the_answer_names_the_generation_and_may_be_asked_for_by_that_name(server: Server, from_disk: Answers) -> None:
    name = server.ask("ad/rome")[1]["model"]
    assert name.startswith("ad/rome#1-")
    assert server.tokens(name) == from_disk.adapters["rome"]
    assert server.ask("ad/rome#2-" + "0" * 16)[0] == 404


def test_an_unknown_id_is_404(server: Server) -> None:
    assert server.ask("ad/nobody")[0] == 404
    assert server.ask("../etc/passwd")[0] == 404


@pytest.mark.parametrize(
    ("name", "rank", "config", "texts"),
    [
        ("dora", 4, {"use_dora": True}, ["FEATURE_UNSUPPORTED", "dora"]),
        ("pissa", 4, {"init_lora_weights": "pissa"}, ["FEATURE_UNSUPPORTED", "init:pissa"]),
        ("wide", 32, {}, ["RANK_TOO_LARGE", "rank 32", "at most 16"]),
    ],
)
def test_what_the_engine_cannot_honour_is_400_with_the_reason_before_a_byte_moves(
    server: Server, daemon: Daemon, files: Files, name: str, rank: int, config: dict[str, object], texts: list[str]
) -> None:
    with daemon.connect() as shelf:
        shelf.register(f"ad/{name}", write_adapter(files.mine / name, rank, **config), base=BASE)
        status, text = refusal(server, f"ad/{name}")
        assert status == 400
        assert [part for part in texts if part not in text] == []
        assert shelf.get(f"ad/{name}").state is ArtifactState.REGISTERED


def test_an_adapter_of_another_base_is_400_and_names_both(server: Server, daemon: Daemon, files: Files) -> None:
    with daemon.connect() as shelf:
        shelf.register("ad/alien", write_adapter(files.mine / "alien"), base="another/base")
        status, text = refusal(server, "ad/alien")
        assert status == 400
        assert f"is for base 'another/base', this engine serves '{BASE}'" in text
        assert shelf.get("ad/alien").state is ArtifactState.REGISTERED


def test_a_base_is_no_adapter(server: Server) -> None:
    assert refusal(server, BASE) == (400, f"INVALID_SPEC: {BASE!r} is no adapter (parameter=model)")


def test_a_slow_shelf_holds_up_nobody_else(server: Server, daemon: Daemon, files: Files, from_disk: Answers) -> None:
    with daemon.connect() as shelf:
        shelf.register("ad/late", files.adapters / "rome", base=BASE)
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(server.tokens, "ad/late")
            assert server.tokens("base") == from_disk.base
            assert server.tokens("ad/paris") == from_disk.adapters["paris"]
            assert server.is_healthy()
            assert not late.done()
            os.kill(daemon.pid, signal.SIGCONT)
            assert late.result() == from_disk.adapters["rome"]
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_replaced_adapter_answers_with_its_new_weights(
    server: Server, daemon: Daemon, files: Files, from_disk: Answers
) -> None:
    """B01: also for a prompt whose answer with the old weights lies in the prefix cache."""
    with daemon.connect() as shelf:
        shelf.register("ad/changing", files.adapters / "paris", base=BASE)
        assert server.tokens("ad/changing") == from_disk.adapters["paris"]
        shelf.register("ad/changing", files.adapters / "madrid", base=BASE, replace=True)
        eventually(lambda: server.tokens("ad/changing") == from_disk.adapters["madrid"], "the new weights answer")


def test_a_removed_adapter_is_404(server: Server, daemon: Daemon) -> None:
    with daemon.connect() as shelf:
        shelf.remove("ad/changing")
    eventually(lambda: server.ask("ad/changing")[0] == 404, "the removed ID is unknown to the server too")


def test_a_daemon_that_is_killed_and_comes_back_costs_no_request(
    server: Server, daemon: Daemon, options: tuple[str, ...], files: Files, from_disk: Answers
) -> None:
    with daemon.connect() as shelf:
        shelf.register("ad/new", files.adapters / "madrid", base=BASE)
    assert server.tokens("ad/rome") == from_disk.adapters["rome"]
    daemon.kill()
    assert server.tokens("base") == from_disk.base
    assert server.tokens("ad/rome") == from_disk.adapters["rome"]  # the engine has it
    dropped_by_engine, unknown_to_server = "ad/paris", "ad/new"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(server.tokens, unknown_to_server), pool.submit(server.tokens, dropped_by_engine)
        daemon.start(*options)
        assert first.result() == from_disk.adapters["madrid"]
        assert second.result() == from_disk.adapters["paris"]


def test_without_a_daemon_an_unknown_adapter_is_503_and_the_base_answers(
    server: Server, daemon: Daemon, from_disk: Answers
) -> None:
    daemon.kill(signal.SIGTERM)
    status, text = refusal(server, "ad/whatever")
    assert status == 503
    assert text.startswith("DAEMON_UNREACHABLE: no daemon answers at unix://")
    assert server.tokens("base") == from_disk.base
    assert "Traceback" not in server.log()

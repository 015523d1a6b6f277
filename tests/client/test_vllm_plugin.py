"""What of the vLLM plugin needs no vLLM: names, options, and which answers are taken back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies

from warmshelf import Artifact, ArtifactSpec, Change, ChangeKind, Source
from warmshelf._adapter_names import AdapterName, id_in, name_of, parse_path
from warmshelf.errors import InvalidRequest, WarmshelfError
from warmshelf.types import check_id
from warmshelf.vllm._options import LoaderOptions, loader_options
from warmshelf.vllm._serving import Given, install

DIGEST = "blake3:" + "0123456789abcdef" * 4
IDS = strategies.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]{0,60}", fullmatch=True)


def artifact(artifact_id: str = "org/a", generation: int = 1, digest: str = DIGEST) -> Artifact:
    return Artifact(artifact_id, ArtifactSpec(Source("file:///a")), generation=generation, digest=digest)


def is_id(text: str) -> bool:
    try:
        return bool(check_id(text))
    except WarmshelfError:
        return False


@given(IDS.filter(is_id), strategies.integers(1, 10**9), strategies.binary(min_size=32, max_size=32))
def test_a_path_means_the_generation_that_it_was_made_of(artifact_id: str, generation: int, digest: bytes) -> None:
    name = AdapterName(artifact_id, generation, f"blake3:{digest.hex()}")
    assert parse_path(name.path) == name
    assert id_in(name.name) == id_in(artifact_id) == artifact_id


def test_other_generations_and_other_contents_have_other_names_and_paths() -> None:
    """A removed ID counts from 1 again: then only the digest differs."""
    other = "blake3:" + "f" * 64
    names = [name_of(artifact()), name_of(artifact(generation=2)), name_of(artifact(digest=other))]
    assert len({one.name for one in names}) == len({one.path for one in names}) == len(names)


def test_a_path_outside_the_reserved_root_is_nobodys() -> None:
    assert parse_path("/models/lora") is None
    assert parse_path("/run/warmshelf/adapters") is None


@pytest.mark.parametrize("rest", ["org/a", "org/a#1", "org/a#1-abc", "#1-" + "0" * 64, "org/a#x-" + "0" * 64])
def test_a_path_without_a_generation_is_refused(rest: str) -> None:
    with pytest.raises(InvalidRequest, match="names no generation"):
        parse_path(f"/run/warmshelf/adapters/{rest}")


def test_a_path_cannot_lead_upwards() -> None:
    with pytest.raises(WarmshelfError, match="contains"):
        parse_path("/run/warmshelf/adapters/a/../b#1-" + "0" * 64)


def test_options_have_defaults_and_take_numbers_of_both_kinds() -> None:
    assert loader_options({}) == LoaderOptions()
    assert loader_options({"wait_seconds": 3}).wait_seconds == 3
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        loader_options("address")
    with pytest.raises(InvalidRequest, match="wait_seconds must be a positive number, got True"):
        loader_options({"wait_seconds": True})


def test_importing_the_plugin_needs_neither_vllm_nor_torch() -> None:
    code = "import sys, warmshelf.vllm; print(*{'vllm', 'torch', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# --- which answers are taken back --------------------------------------------------


class Serving:
    """A server that keeps answers as vLLM's does."""

    def __init__(self) -> None:
        self.lora_requests: dict[str, SimpleNamespace] = {}

    def keep(self, asked: str, name: AdapterName) -> None:
        self.lora_requests[asked] = SimpleNamespace(lora_name=name.name)


class Quiet(Given):
    """Watches nothing: changes come from the test."""

    def _watch(self, shelf: object) -> None:
        pass


def changed(generation: int, artifact_id: str = "org/a") -> Change:
    return Change(2, ChangeKind.CHANGED, artifact(artifact_id, generation), artifact_id)


COMPLETE = Change(2, ChangeKind.COMPLETE)
STARTED_OVER = Change(0, ChangeKind.STARTED_OVER)
REMOVED = Change(3, ChangeKind.REMOVED, None, "org/a")
OTHER = Change(3, ChangeKind.CHANGED, artifact("org/other"), "org/other")


async def kept_after(*changes: Change, generation: int = 1) -> bool:
    """Say whether a server still keeps an answer after these changes."""
    serving, answers = Serving(), Quiet()
    name = name_of(artifact(generation=generation))
    answers.expect("org/a", None)  # type: ignore[arg-type]
    answers.note(serving, "org/a", name)
    serving.keep("org/a", name)
    for change in changes:
        answers.take(change)
    await asyncio.sleep(0)  # what was called soon has run
    return "org/a" in serving.lora_requests


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ([], True),
        ([changed(1), COMPLETE], True),
        ([changed(1), OTHER, COMPLETE, OTHER], True),
        ([changed(1), COMPLETE, changed(2)], False),
        ([changed(2), COMPLETE], False),
        ([COMPLETE], False),
        ([changed(1), COMPLETE, REMOVED], False),
        ([changed(1), COMPLETE, STARTED_OVER, changed(1), COMPLETE], True),
        ([changed(1), COMPLETE, STARTED_OVER, COMPLETE], False),
    ],
    ids=["none", "same", "others", "replaced", "replaced_before", "unknown", "removed", "again", "gone_meanwhile"],
)
async def test_an_answer_is_kept_until_the_shelf_has_another(changes: list[Change], kept: bool) -> None:
    assert await kept_after(*changes) is kept


async def test_an_older_generation_that_is_told_late_takes_nothing_back() -> None:
    assert await kept_after(changed(1), COMPLETE, generation=2)


async def test_a_newer_answer_is_not_taken_back_for_an_older_one() -> None:
    serving, answers = Serving(), Quiet()
    answers.expect("org/a", None)  # type: ignore[arg-type]
    answers.note(serving, "org/a", name_of(artifact()))
    serving.keep("org/a", name_of(artifact(generation=2)))
    answers.take(changed(2))
    await asyncio.sleep(0)
    assert "org/a" in serving.lora_requests


class ServerThatKeeps(Serving):
    """Resolves as vLLM does, and is told of a new generation while it does."""

    answers = Quiet()
    resolved = 0

    async def resolve_lora(self, lora_name: str) -> int:
        self.resolved += 1
        name = name_of(artifact(generation=self.resolved))
        self.answers.expect("org/a", None)  # type: ignore[arg-type]
        self.answers.note(self, lora_name, name)
        if self.resolved == 1:
            self.answers.take(changed(2))
        self.keep(lora_name, name)
        return self.resolved


async def test_a_name_that_changed_while_it_was_resolved_is_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmshelf.vllm._serving.given", ServerThatKeeps.answers)
    assert install(ServerThatKeeps)
    server = ServerThatKeeps()
    assert await server.resolve_lora("org/a") == 2
    assert server.lora_requests["org/a"].lora_name == name_of(artifact(generation=2)).name


class ServerOfAnotherVllm:
    """Resolves with one more argument."""

    async def resolve_lora(self, lora_name: str, tenant: str) -> None:
        pass


def test_a_server_that_is_not_as_it_was_is_left_alone() -> None:
    before = ServerOfAnotherVllm.resolve_lora
    assert not install(ServerOfAnotherVllm)
    assert not install(object)
    assert ServerOfAnotherVllm.resolve_lora is before

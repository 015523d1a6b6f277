"""The command prints what it was told to, and its exit status says how it went."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

from kit.segments import SegmentFile
from kit.standin import StandIn
from warmshelf import Artifact, ArtifactSpec, ArtifactState, Change, ChangeKind, Source, _cli_render, cli
from warmshelf.types import Failure, LeaseInfo
from warmshelf.v1 import artifact_pb2, capabilities_pb2

Run = Callable[..., tuple[int, str, str]]
LONG_URI = "file:///models/" + "x" * 200


@pytest.fixture
def run(stand_in: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in this process and returns status, output and error output."""
    monkeypatch.setenv("WARMSHELF_ADDRESS", stand_in.address)

    def run_it(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["warmshelf", *arguments])
        with pytest.raises(SystemExit) as caught:
            sys.exit(cli.main())
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def test_an_artifact_is_registered_listed_and_removed(run: Run) -> None:
    status, out, err = run("register", "org/a", LONG_URI, "--keep", "--follow")
    assert (status, err) == (0, "")
    assert "org/a" in out
    status, out, _ = run("list")
    assert LONG_URI in out  # in a pipe nothing is cut or wrapped
    assert out.splitlines()[0].split() == ["ID", "KIND", "STATE", "SIZE", "GENERATION", "BASE", "SOURCE"]
    assert run("remove", "org/a") == (0, "removed org/a\n", "")
    assert len(run("list")[1].splitlines()) == 1


def test_no_line_of_a_table_ends_in_blanks(run: Run) -> None:
    run("register", "org/a", LONG_URI)
    run("register", "org/b", "file:///b")
    for command in (["list"], ["show", "org/a"], ["capacity"]):
        lines = run(*command)[1].splitlines()
        assert len(lines) > 2
        assert [line for line in lines if line != line.rstrip()] == []


def test_json_has_the_protocols_names(run: Run) -> None:
    run("register", "org/a", "file:///models/a", "--base", "org/base")
    status, out, _ = run("list", "--output", "json")
    assert status == 0
    artifact = json.loads(out)["artifacts"][0]
    assert artifact["artifact_id"] == "org/a"
    assert artifact["state"] == "ARTIFACT_STATE_REGISTERED"
    assert artifact["keep_resident"] is False
    assert artifact["spec"]["adapter"]["base_artifact_id"] == "org/base"
    assert json.loads(run("show", "org/a", "--output", "json")[1])["artifact_id"] == "org/a"
    assert json.loads(run("leases", "--output", "json")[1])["leases"] == []
    assert json.loads(run("remove", "org/a", "--output", "json")[1]) == {}


def test_options_for_all_stand_before_or_after_the_command(run: Run, stand_in: StandIn) -> None:
    after = run("list", "--output", "json", "--address", stand_in.address)
    assert after == run("--output", "json", "--address", stand_in.address, "list")
    assert json.loads(after[1])["artifacts"] == []


def test_what_the_daemon_refuses_is_status_1_with_reason_and_text(run: Run) -> None:
    status, out, err = run("show", "nobody")
    assert (status, out) == (1, "")
    assert err == "ARTIFACT_NOT_FOUND: no artifact 'nobody'\n"


def test_the_numbers_of_an_error_are_printed(run: Run) -> None:
    status, _, err = run("show", "x" * 300)
    assert status == 1
    assert err.startswith("INVALID_ID: ")
    assert err.endswith("(length_count=300)\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["nonsense"],
        ["list", "--output", "xml"],
        ["register", "a", "b", "--replace", "--follow"],
        ["--address", "nonsense", "list"],
        ["watch", "--after", "-1"],
        ["export", "a"],
    ],
)
def test_wrong_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments)[0] == 2


def test_an_unreachable_daemon_is_status_3(run: Run, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmshelf._channel.FIRST_CONTACT_SECONDS", 0.2)
    stand_in.stop()
    status, out, err = run("list")
    assert (status, out) == (3, "")
    assert err.startswith("DAEMON_UNREACHABLE: ")
    assert stand_in.address in err


def test_artifacts_are_loaded_one_after_the_other_and_a_failure_stops_none(
    run: Run, stand_in: StandIn, segment: SegmentFile
) -> None:
    stand_in.add("org/a", segment)
    stand_in.add("org/b", segment)
    status, out, err = run("load", "org/a", "nobody", "org/b")
    assert status == 1
    assert [line.split()[0] for line in out.splitlines()] == ["ID", "org/a", "org/b"]
    assert err == "ARTIFACT_NOT_FOUND: no artifact 'nobody'\n"  # and no bar, for nobody sees it
    assert run("load", "org/a")[0] == 0


def test_on_a_terminal_a_load_shows_how_far_it_is(stand_in: StandIn, segment: SegmentFile) -> None:
    stand_in.add("org/a", segment)
    terminal, end = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "warmshelf.cli", "--address", stand_in.address, "load", "org/a"],
        stdout=subprocess.PIPE,
        stderr=end,
        check=False,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(end)
    assert done.returncode == 0
    assert b"org/a" in os.read(terminal, 1 << 16)
    os.close(terminal)


def test_detached_loads_are_asked_for(run: Run, stand_in: StandIn, segment: SegmentFile) -> None:
    stand_in.add("org/a", segment)
    assert run("load", "org/a", "--detach")[0] == 0
    assert run("load", "org/a")[0] == 0
    assert stand_in.detached == [True, False]


def test_changes_are_lines_of_fixed_columns(capsys: pytest.CaptureFixture[str]) -> None:
    artifact = Artifact("org/a", ArtifactSpec(Source("x")), state=ArtifactState.READY, generation=2)
    found = [
        Change(0, ChangeKind.STARTED_OVER),
        Change(0, ChangeKind.CHANGED, artifact, "org/a"),
        Change(7, ChangeKind.COMPLETE),
        Change(8, ChangeKind.REMOVED, artifact_id="org/a"),
    ]
    _cli_render.changes(found, _cli_render.Output.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["0", "started_over"],
        ["0", "changed", "ready", "2", "org/a"],
        ["7", "complete"],
        ["8", "removed", "org/a"],
    ]
    assert lines[1].index("org/a") == lines[3].index("org/a")
    _cli_render.changes(found, _cli_render.Output.JSON)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sorted(row.keys() - {"sequence"}) for row in rows] == [
        ["started_over"],
        ["changed"],
        ["snapshot_complete"],
        ["removed_artifact_id"],
    ]


def test_capacity_is_printed_with_what_fits(run: Run, stand_in: StandIn) -> None:
    stand_in.capacity = capabilities_pb2.GetCapacityResponse(
        budget_bytes=1 << 30, free_bytes=3 << 20, fit_free_count=5, fit_evicting_count=9
    )
    status, out, _ = run("capacity", "--like", "org/a")
    assert status == 0
    assert [line.split(maxsplit=1) for line in out.splitlines()[:1]] == [["budget", "1.0 GiB (1073741824 bytes)"]]
    assert "more like org/a  5, and 9 with evictions" in out
    assert "more like" not in run("capacity")[1]
    assert json.loads(run("capacity", "--output", "json")[1])["free_bytes"] == str(3 << 20)


def test_an_artifact_is_evicted(run: Run, stand_in: StandIn, segment: SegmentFile) -> None:
    stand_in.add("org/a", segment)
    status, out, _ = run("evict", "org/a", "--drain")
    assert status == 0
    assert "registered" in out


def an_adapter() -> artifact_pb2.AdapterInspection:
    return artifact_pb2.AdapterInspection(
        adapter_number=7,
        rank_max=16,
        module_names=["q_proj", "v_proj"],
        features=["dora"],
        base_check=artifact_pb2.BASE_CHECK_PARTIAL,
        unmatched_module_names=["w_proj"],
        config_json=b'{"r": 16}',
        engine_verdicts=[
            artifact_pb2.EngineVerdict(
                engine="vllm",
                engine_version="0.32",
                outcome=artifact_pb2.ENGINE_OUTCOME_REFUSES,
                reasons=["dora: is not supported", "rank 16: fits"],
            ),
            artifact_pb2.EngineVerdict(engine="peft", outcome=99),
        ],
    )


def test_show_prints_everything(run: Run, stand_in: StandIn) -> None:
    stand_in.artifacts["org/a"] = artifact_pb2.Artifact(
        artifact_id="org/a",
        kind=artifact_pb2.ARTIFACT_KIND_ADAPTER,
        state=artifact_pb2.ARTIFACT_STATE_FAILED,
        pinned=True,
        size_bytes=3 << 20,
        digest="blake3:00",
        spec=artifact_pb2.ArtifactSpec(source=artifact_pb2.Source(uri="file:///a", revision="r1")),
        failure=artifact_pb2.Failure(reason="ARENA_FULL", message="no room", details={"need_bytes": "7"}),
        inspection=artifact_pb2.Inspection(
            file_names=["one.safetensors", "two.safetensors"], tensor_count=2, tensor_bytes=5, adapter=an_adapter()
        ),
    )
    out = run("show", "org/a")[1]
    for text in (
        "3.0 MiB (3145728 bytes)",
        "page-locked",
        "blake3:00",
        "file:///a",
        "r1",
        "ARENA_FULL: no room",
        "need_bytes",
        "one.safetensors",
        "two.safetensors",
        "q_proj, v_proj",
        "dora",
        "partial",
        "w_proj",
        '{"r": 16}',
        "vllm 0.32",
        "refuses",
        "dora: is not supported",
        "unknown",
    ):
        assert text in out
    lines = [line.split() for line in out.splitlines()]
    assert lines[lines.index(["vllm", "0.32", "refuses"]) + 1] == ["dora:", "is", "not", "supported"]
    shown = json.loads(run("show", "org/a", "--output", "json")[1])["inspection"]["adapter"]["engine_verdicts"]
    assert shown[0]["outcome"] == "ENGINE_OUTCOME_REFUSES"
    assert shown[0]["reasons"] == ["dora: is not supported", "rank 16: fits"]


def test_what_a_terminal_would_obey_is_made_visible(run: Run, stand_in: StandIn) -> None:
    stand_in.artifacts["org/a"] = artifact_pb2.Artifact(
        artifact_id="org/a",
        state=artifact_pb2.ARTIFACT_STATE_READY,
        spec=artifact_pb2.ArtifactSpec(source=artifact_pb2.Source(uri="file:///\x1b[2J[bold]ü")),
    )
    for command in (["list"], ["show", "org/a"]):
        out = run(*command)[1]
        assert "\x1b" not in out
        assert "\\x1b[2J[bold]ü" in out


def test_a_strangers_text_makes_no_line_of_its_own(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    forged = "x\norg/a  1  somebody\telse\r\x85\u2028"
    _cli_render.leases([LeaseInfo("org/a", 1, forged)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert r"x\norg/a  1  somebody\telse\r\x85\u2028" in lines[1]
    plain, other = (
        Artifact("org/a", ArtifactSpec(Source("file:///a", revision)), failure=Failure(message, message))
        for revision, message in (("r", "m"), ("r\nstate  ready", "m\nstate  ready"))
    )
    for artifact in (plain, other):
        _cli_render.whole_artifact(artifact)
    out = capsys.readouterr().out.splitlines()
    assert len(out) % 2 == 0
    assert sum(line.startswith("state") for line in out) == 2


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 20, "1.5 GiB"), (5 << 50, "5120.0 TiB")],
)
def test_sizes_are_printed_for_people(size_bytes: int, text: str) -> None:
    assert _cli_render.size(size_bytes) == text


def test_the_version_is_printed(run: Run) -> None:
    status, out, _ = run("--version")
    assert status == 0
    assert out.startswith("warmshelf")


def test_without_its_extra_the_command_says_what_to_install() -> None:
    code = """
import sys
sys.modules["typer"] = None
from warmshelf import cli
sys.exit(cli.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert "warmshelf[cli]" in done.stderr


def test_the_budget_is_shown_and_changed(run: Run, stand_in: StandIn) -> None:
    stand_in.capacity.CopyFrom(capabilities_pb2.GetCapacityResponse(budget_bytes=3 << 30))
    assert "3.0 GiB" in run("budget")[1]
    status, out, _ = run("budget", "1.5GiB", "--output", "json")
    assert (status, json.loads(out)["budget_bytes"]) == (0, str(3 << 29))
    assert stand_in.capacity.budget_bytes == 3 << 29
    status, _, err = run("budget", "48 giblets")
    assert status == 2
    assert "64GiB" in err

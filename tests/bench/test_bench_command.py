"""``warmshelf bench`` measures against a running daemon and leaves it as it was. No time is judged."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon
from warmshelf import _bench, cli
from warmshelf.types import ArtifactState

Run = Callable[..., tuple[int, str, str]]
BASE_ID = "acme/base"

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that knows one small base."""
    root = tmp_path_factory.mktemp("bench")
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(root, Path(arena), root / "models")
        write_model(it.models / "base.safetensors", 1)
        it.start("--budget", "64MiB")
        with it.connect() as shelf:
            shelf.register(BASE_ID, it.models / "base.safetensors")
        yield it
        it.kill(signal.SIGTERM)
        it.check()


@pytest.fixture
def run(daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs the command in this process; at the end nothing of it is left in the daemon."""
    monkeypatch.setenv("WARMSHELF_ADDRESS", daemon.address)
    monkeypatch.setattr(_bench, "ACQUIRE_COUNT", 5)
    monkeypatch.setattr(_bench, "MADE_TENSOR_BYTES", 64 << 10)

    def run_it(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["warmshelf", "bench", "--rounds", "2", *arguments])
        with pytest.raises(SystemExit) as caught:
            sys.exit(cli.main())
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    yield run_it
    assert [path.name for path in daemon.models.iterdir()] == ["base.safetensors"]
    with daemon.connect() as shelf:
        assert [artifact.artifact_id for artifact in shelf.list()] == [BASE_ID]
        assert shelf.leases() == []


def measured(run: Run, *arguments: str) -> list[dict[str, object]]:
    status, out, err = run(*arguments, "--output", "json")
    assert (status, err) == (0, "")
    found: list[dict[str, object]] = json.loads(out)["measurements"]
    return found


def test_an_artifact_is_loaded_if_need_be_mapped_and_streamed(run: Run, daemon: Daemon) -> None:
    (found,) = measured(run, BASE_ID)
    assert found["artifact_id"] == BASE_ID
    assert found["fallback_reason"] == ""
    with daemon.connect() as shelf:
        assert shelf.get(BASE_ID).size_bytes == found["size_bytes"]
    assert 0 < found["acquire_p50_seconds"] <= found["acquire_p99_seconds"]  # type: ignore[operator]
    assert found["streamed_bytes_per_second"] > 0  # type: ignore[operator]
    assert found["loaded_bytes_per_second"] is None


def test_loads_are_measured_when_evicting_is_allowed_and_it_is_resident_again(run: Run, daemon: Daemon) -> None:
    before = daemon.segments()
    (found,) = measured(run, BASE_ID, "--reload")
    assert found["loaded_bytes_per_second"] > 0  # type: ignore[operator]
    assert daemon.segments() != before
    with daemon.connect() as shelf:
        assert shelf.get(BASE_ID).state is ArtifactState.READY


def test_what_somebody_leases_is_not_evicted_for_it(run: Run, daemon: Daemon) -> None:
    with daemon.connect() as shelf, shelf.acquire(BASE_ID):
        status, out, err = run(BASE_ID, "--reload")
    assert (status, out) == (1, "")
    assert err.startswith("LEASED: ")


def test_an_artifact_is_made_where_the_daemon_may_read_and_is_gone_afterwards(run: Run, daemon: Daemon) -> None:
    base, made = measured(run, BASE_ID, "--source", str(daemon.models), "--reload")
    assert base["artifact_id"] == BASE_ID
    assert str(made["artifact_id"]).startswith("warmshelf-bench-")
    assert made["size_bytes"] >= _bench.MADE_TENSOR_COUNT * (64 << 10)  # type: ignore[operator]
    assert made["loaded_bytes_per_second"] > 0  # type: ignore[operator]


def test_where_the_daemon_may_not_read_nothing_is_left_either(run: Run, tmp_path: Path) -> None:
    status, _, err = run("--source", str(tmp_path))
    assert status == 1
    assert err.startswith("SOURCE_NOT_ALLOWED: ")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(run: Run, daemon: Daemon) -> None:
    status, _, err = run("--source", f"{daemon.models}/missing")
    assert status == 1
    assert err.startswith(f"INVALID_REQUEST: cannot write {daemon.models}/missing/")


def test_over_tcp_only_streaming_is_measured(run: Run, daemon: Daemon) -> None:
    status, out, _ = run(BASE_ID, "--address", daemon.tcp_address)
    assert status == 0
    head, row = out.splitlines()
    assert head.split("  ")[0] == "ID"
    assert "not mapped: tcp" in row
    assert row.count("GB/s") == 1


def test_a_table_has_milliseconds_and_rates(run: Run) -> None:
    row = run(BASE_ID, "--reload")[1].splitlines()[1]
    assert row.startswith(BASE_ID)
    assert (row.count(" ms"), row.count("GB/s")) == (2, 2)


def test_what_is_too_large_is_not_streamed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench, "STREAM_BYTES_MAX", 1 << 16)
    assert measured(run, BASE_ID)[0]["streamed_bytes_per_second"] is None


def test_without_an_artifact_it_says_what_to_name(run: Run) -> None:
    status, _, err = run()
    assert status == 2
    assert "--source" in err


def test_an_unknown_artifact_is_refused(run: Run) -> None:
    status, _, err = run("nobody")
    assert status == 1
    assert err.startswith("ARTIFACT_NOT_FOUND: ")


def test_a_quantile_is_one_of_the_samples() -> None:
    assert _bench.quantile([], 0.5) is None
    assert _bench.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert _bench.quantile([float(i) for i in range(200)], 0.99) == 198.0
    assert _bench.quantile([7.0], 0.99) == 7.0

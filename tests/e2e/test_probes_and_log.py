"""Probes and the log of a real daemon, as a kubelet and an operator see them."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import warmshelf
from kit.models import write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, eventually
from kit.scrape import HTTP, Pages, pages_of


@pytest.fixture
def plain(served: Daemon) -> Iterator[Plain]:
    with Plain(served.tcp_address) as client:
        yield client


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as it:
        return int(it.getsockname()[1])


def logged(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the log's lines about calls."""
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines()]
    return [line for line in lines if line["logger"] == "warmshelfd.call"]


# --- probes -------------------------------------------------------------------


def test_started_means_listening_and_ready_that_the_preload_was_tried(daemon: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    daemon.start()
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
    daemon.kill(signal.SIGKILL)
    pages = Pages(f"127.0.0.1:{free_port()}")
    slow = "adopt.segment=delay(400);load.read=delay(400)"
    write_model(models / "b.safetensors", 2)
    declared = daemon.root / "declared.toml"
    declared.write_text(f'["b"]\nsource = "{models}/b.safetensors"\n')
    daemon.start(
        *("--declare", str(declared), "--preload", "b", "nobody"),
        *("--http", pages.address),
        failpoints=slow,
        wait=False,
    )

    def told() -> tuple[int, int, int] | None:
        try:
            return pages.status("/startupz"), pages.status("/readyz"), pages.status("/livez")
        except ConnectionRefusedError:
            return None

    seen: list[tuple[int, int, int]] = []

    def is_ready() -> bool:
        now = told()
        if now is not None and now not in seen:
            seen.append(now)
        return now == (200, 200, 200)

    eventually(is_ready, "the daemon is ready")
    assert seen == [(503, 503, 200), (200, 503, 200), (200, 200, 200)]
    daemon.wait_ready()
    with daemon.connect() as shelf:
        assert shelf.get("b").state is warmshelf.ArtifactState.READY


def test_ready_stays_when_loads_fail_and_goes_when_the_daemon_stops(
    served: Daemon, pages: Pages, plain: Plain, models: Path
) -> None:
    write_model(models / "a.safetensors", 1)
    plain.register("a", models / "a.safetensors")
    (models / "a.safetensors").unlink()
    with refused(grpc.StatusCode.NOT_FOUND, "SOURCE_NOT_FOUND"):
        plain.acquire("a")
    assert [pages.status(path) for path in ("/startupz", "/readyz", "/livez")] == [200, 200, 200]
    write_model(models / "b.safetensors", 2, size=24 << 20)
    plain.register("b", models / "b.safetensors")
    unread = plain.read(plain.acquire("b").lease.lease_id)
    next(unread)  # a call under way: the daemon waits for it
    assert served.process is not None
    served.process.send_signal(signal.SIGTERM)
    eventually(lambda: pages.status("/readyz") == 503, "no longer ready")
    assert (pages.status("/livez"), pages.status("/startupz")) == (200, 200)
    unread.cancel()
    plain.session.cancel()
    assert served.wait() == 0


def test_a_stuck_event_loop_is_not_alive_and_metrics_still_answer(daemon: Daemon, models: Path) -> None:
    env = {"WARMSHELF_STUCK_SECONDS": "0.5"}
    daemon.start("--budget", "31MiB", *HTTP, failpoints="load.started=delay(2500)", env=env)
    pages, registered = pages_of(daemon), 'warmshelf_artifacts{state="registered"}'
    write_model(models / "a.safetensors", 1)
    with Plain(daemon.tcp_address) as plain:
        plain.register("a", models / "a.safetensors")
        eventually(lambda: pages.status("/livez") == 200, "the loop turns")
        before = pages.scrape()
        loading = plain.acquire_later("a")  # the loop sleeps in the failpoint
        eventually(lambda: pages.status("/livez") == 503, "the loop counts as stuck")
        assert pages.status("/readyz") == 200
        stuck = pages.scrape()
        assert stuck["warmshelf_heartbeat_age_seconds"] > 0.5
        assert stuck[registered] == before[registered] == 1  # as it was when the loop last answered
        loading.result()
        eventually(lambda: pages.status("/livez") == 200, "the loop turns again")


def test_there_are_no_pages_unless_they_are_asked_for(running: Daemon) -> None:
    assert "http=" not in running.ready_line


def test_a_port_that_another_process_has_is_refused_at_start(daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon.start("--http", f"127.0.0.1:{port}", wait=False)
        assert daemon.wait() == 1
    assert f"DAEMON_IN_USE: cannot serve HTTP on 127.0.0.1:{port}" in daemon.log.read_text()


# --- the log ------------------------------------------------------------------


def test_every_call_leaves_one_line_and_no_secret(served: Daemon, plain: Plain, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    plain.register("acme/a", models / "a.safetensors")
    granted = plain.acquire("acme/a")
    assert sum(len(chunk.data) for chunk in plain.read(granted.lease.lease_id)) > 1 << 20
    plain.release(granted.lease.lease_id)
    with refused(grpc.StatusCode.NOT_FOUND, "ARTIFACT_NOT_FOUND"):
        plain.evict("nobody")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ID"):
        plain.register('forged"\n{"event": "call"}', Path("/x"))
    plain.health_of()
    plain.session.cancel()
    eventually(lambda: len(logged(served)) == 7, "each call has its line")
    lines = logged(served)
    assert [(line["method"].partition("/")[2], line["code"], line.get("reason")) for line in lines] == [
        ("RegisterArtifact", "OK", None),
        ("AcquireLease", "OK", None),
        ("ReadSegment", "OK", None),
        ("ReleaseLease", "OK", None),
        ("EvictArtifact", "NOT_FOUND", "ARTIFACT_NOT_FOUND"),
        ("RegisterArtifact", "INVALID_ARGUMENT", "INVALID_ID"),
        ("OpenSession", "CANCELLED", "CANCELLED"),
    ]
    assert [line.get("artifact_id") for line in lines] == ["acme/a", "acme/a", None, None, "nobody", None, None]
    assert all(0 <= line["duration_seconds"] < 30 for line in lines)
    text = served.log.read_text()
    assert plain.session_id not in text
    assert granted.lease.lease_id not in text
    assert "forged" not in text


def test_lines_can_be_text_where_that_is_wanted(daemon: Daemon) -> None:
    daemon.start("--log-format", "text")
    with daemon.connect() as shelf:
        assert list(shelf.list()) == []
    eventually(lambda: "CatalogService/ListArtifacts" in daemon.log.read_text(), "the line is there")
    assert not daemon.log.read_text().startswith("{")

"""Metrics of a real daemon after known actions, read as Prometheus reads them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import warmshelf
from kit.models import write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, eventually
from kit.scrape import HTTP, Pages, Scrape, pages_of
from warmshelf.v1 import catalog_pb2

MIB = 1 << 20

LINES_MAX = 1500
"""As docs/metrics.md says."""


@pytest.fixture
def plain(served: Daemon) -> Iterator[Plain]:
    with Plain(served.tcp_address) as client:
        yield client


@pytest.fixture
def register(plain: Plain, models: Path) -> Callable[[str], Path]:
    """Writes a model of 8 MiB with content of its own and registers it under its name."""

    def register(name: str) -> Path:
        path = models / f"{name}.safetensors"
        write_model(path, sum(name.encode()), size=8 * MIB)
        plain.register(name, path)
        return path

    return register


def calls(seen: Scrape, method: str, code: str, service: str = "CatalogService", kind: str = "unary") -> float:
    labels = f'grpc_type="{kind}",grpc_service="warmshelf.v1.{service}",grpc_method="{method}",grpc_code="{code}"'
    return seen[f"grpc_server_handled_total{{{labels}}}"]


def test_a_load_a_hit_and_an_evict_are_counted_at_once(pages: Pages, plain: Plain, register: Any) -> None:
    register("a")
    assert pages.scrape()['warmshelf_artifacts{state="registered"}'] == 1
    plain.release(plain.acquire("a").lease.lease_id)
    lease_id = plain.acquire("a").lease.lease_id
    seen = pages.scrape()
    assert seen['warmshelf_acquires_total{kind="base",result="miss"}'] == 1
    assert seen['warmshelf_acquires_total{kind="base",result="hit"}'] == 1
    for phase in ("inspect", "reserve", "read", "verify", "seal", "pin"):
        labels = f'{{kind="base",phase="{phase}",scheme="file",outcome="ok"}}'
        assert seen[f"warmshelf_load_phase_seconds_count{labels}"] == 1, phase
    assert seen['warmshelf_load_seconds_count{kind="base",scheme="file",outcome="ok"}'] == 1
    assert seen['warmshelf_load_seconds_bucket{kind="base",scheme="file",outcome="ok",le="60.0"}'] == 1
    assert (seen["warmshelf_sessions"], seen["warmshelf_leases"]) == (1, 1)
    assert seen['warmshelf_artifacts{state="ready"}'] == seen['warmshelf_segments{kind="base"}'] == 1
    assert 8 * MIB <= seen['warmshelf_arena_bytes{state="held"}'] <= 9 * MIB
    plain.release(lease_id)
    idle = pages.scrape()
    assert idle['warmshelf_arena_bytes{state="idle"}'] == seen['warmshelf_arena_bytes{state="held"}']
    plain.evict("a")
    gone = pages.scrape()
    assert gone['warmshelf_evictions_total{kind="base",reason="explicit"}'] == 1
    assert gone['warmshelf_arena_bytes{state="free"}'] == gone["warmshelf_arena_budget_bytes"] == 31 * MIB
    assert gone['warmshelf_artifacts{state="registered"}'] == 1


def test_the_states_of_the_arena_add_up_to_the_budget(pages: Pages, plain: Plain, register: Any) -> None:
    for name in "abc":
        register(name)
        lease_id = plain.acquire(name).lease.lease_id
    plain.release(lease_id)
    seen = pages.scrape()
    states = {state: seen[f'warmshelf_arena_bytes{{state="{state}"}}'] for state in ("held", "idle", "free")}
    assert states["held"] == 2 * states["idle"]
    assert sum(states.values()) == seen["warmshelf_arena_budget_bytes"]


def test_making_room_is_counted_and_so_is_waiting_for_it(pages: Pages, plain: Plain, register: Any) -> None:
    leases = {}
    for name in "abcd":
        register(name)
    for name in "abc":
        leases[name] = plain.acquire(name).lease.lease_id
    waiting = plain.acquire_later("d")
    eventually(lambda: pages.scrape()['warmshelf_loads{state="waiting"}'] == 1, "a load waits for room")
    seen = pages.scrape()
    assert seen['warmshelf_room_waits_total{kind="base"}'] == 1
    assert seen["warmshelf_callers_waiting"] == 1
    assert seen['warmshelf_evictions_total{kind="base",reason="placement"}'] == 0
    plain.release(leases["a"])
    assert waiting.result().artifact.artifact_id == "d"
    seen = pages.scrape()
    assert seen['warmshelf_evictions_total{kind="base",reason="placement"}'] == 1
    assert seen['warmshelf_room_waits_total{kind="base"}'] == 1
    assert seen["warmshelf_callers_waiting"] == seen['warmshelf_loads{state="waiting"}'] == 0
    in_vain = plain.acquire_later("a")
    eventually(lambda: pages.scrape()['warmshelf_loads{state="waiting"}'] == 1, "a load waits for room")
    in_vain.cancel()
    ended = 'warmshelf_load_phase_seconds_count{kind="base",phase="reserve",scheme="file",outcome="cancelled"}'
    eventually(lambda: pages.scrape()[ended] == 1, "the load has been stopped")


def test_why_bytes_were_given_up_is_told_apart(
    served: Daemon, pages: Pages, plain: Plain, register: Any, models: Path
) -> None:
    register("a")
    plain.acquire("a")
    write_model(models / "a.safetensors", 99, size=8 * MIB)
    plain.register("a", models / "a.safetensors", replace=True)
    register("b")
    plain.release(plain.acquire("b").lease.lease_id)
    plain.remove("b")
    register("c")
    plain.acquire("c")
    flip_a_bit(served)
    with refused(grpc.StatusCode.DATA_LOSS, "SEGMENT_CORRUPT"):
        plain.catalog.VerifyArtifact(catalog_pb2.VerifyArtifactRequest(artifact_id="c"), timeout=10)
    write_model(models / "same.safetensors", 5)
    for name in ("same", "again"):
        plain.register(name, models / "same.safetensors")
        plain.acquire(name)
    seen = pages.scrape()
    for reason in ("replaced", "removed", "withdrawn"):
        assert seen[f'warmshelf_evictions_total{{kind="base",reason="{reason}"}}'] == 1, reason
    twice = 'warmshelf_evictions_total{kind="base",reason="duplicate"}'
    eventually(lambda: pages.scrape()[twice] == 1, "what is there twice has become one")
    assert calls(seen, "VerifyArtifact", "DataLoss") == 1


def flip_a_bit(daemon: Daemon) -> None:
    """Change a byte of the newest segment's data."""
    path = max((daemon.arena / name for name in daemon.segments()), key=lambda path: path.stat().st_mtime_ns)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(9000)
        byte = file.read(1)
        file.seek(9000)
        file.write(bytes([byte[0] ^ 1]))


def test_a_stream_counts_its_bytes_and_why_it_was_not_mapped(served: Daemon, pages: Pages, register: Any) -> None:
    register("a")
    with warmshelf.connect(served.tcp_address) as shelf, shelf.acquire("a", timeout=20) as lease:
        size = len(lease.segment_view)
    seen = pages.scrape()
    assert seen['warmshelf_fallbacks_total{reason="tcp"}'] == 1
    assert seen["warmshelf_streamed_bytes_total"] == size
    assert seen["warmshelf_streams"] == 0
    with served.connect() as shelf, shelf.acquire("a", timeout=20):
        assert pages.scrape()["warmshelf_streamed_bytes_total"] == size  # mapped


def test_a_failed_load_counts_in_the_phase_that_failed(pages: Pages, plain: Plain, register: Any, models: Path) -> None:
    path = register("a")
    path.unlink()
    with refused(grpc.StatusCode.NOT_FOUND, "SOURCE_NOT_FOUND"):
        plain.acquire("a")
    write_model(models / "large.safetensors", 1, size=40 * MIB)
    plain.register("large", models / "large.safetensors")
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "LARGER_THAN_ARENA"):
        plain.acquire("large")
    seen = pages.scrape()
    for phase in ("inspect", "reserve"):
        labels = f'{{kind="base",phase="{phase}",scheme="file",outcome="failed"}}'
        assert seen[f"warmshelf_load_phase_seconds_count{labels}"] == 1, phase
    assert seen['warmshelf_load_seconds_count{kind="base",scheme="file",outcome="failed"}'] == 2
    assert calls(seen, "AcquireLease", "NotFound", "LeaseService") == 1
    assert calls(seen, "AcquireLease", "ResourceExhausted", "LeaseService") == 1


def test_a_restart_counts_what_it_adopted_and_begins_anew(daemon: Daemon, models: Path) -> None:
    """B59: counters belong to one life of the process."""
    daemon.start(*HTTP)
    with daemon.connect() as shelf:
        for name in "ab":
            write_model(models / f"{name}.safetensors", ord(name))
            shelf.register(name, models / f"{name}.safetensors")
            shelf.acquire(name, timeout=20).release()
    daemon.kill(signal.SIGKILL)
    broken = daemon.arena / daemon.segments()[0]
    broken.chmod(0o600)
    with broken.open("r+b") as file:
        file.seek(20)
        file.write(b"\0\0\0\0")
    daemon.start(*HTTP)
    seen = pages_of(daemon).scrape()
    assert seen['warmshelf_adoptions_total{result="adopted"}'] == 1
    assert seen['warmshelf_adoptions_total{result="segment_corrupt"}'] == 1
    assert seen['warmshelf_segments{kind="base"}'] == 1
    assert seen['warmshelf_acquires_total{kind="base",result="miss"}'] == 0


def test_what_is_not_page_locked_is_said(daemon: Daemon, models: Path) -> None:
    """B41: served unpinned, and the metrics say so."""
    daemon.start("--pin", "off", *HTTP)
    write_model(models / "a.safetensors", 1)
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
    seen = pages_of(daemon).scrape()
    assert seen['warmshelf_arena_info{pinning="none",page_size_bytes="4096"}'] == 1
    assert seen["warmshelf_arena_unpinned_bytes"] == seen['warmshelf_arena_bytes{state="idle"}'] > 0


def test_calls_end_under_their_codes_and_unknown_methods_leave_no_series(
    served: Daemon, pages: Pages, plain: Plain
) -> None:
    with pytest.raises(grpc.RpcError):
        for _ in plain.catalog.WatchArtifacts(catalog_pb2.WatchArtifactsRequest(), timeout=0.3):
            pass
    watch = plain.catalog.WatchArtifacts(catalog_pb2.WatchArtifactsRequest(), timeout=20)
    next(watch)
    watch.cancel()
    evil = plain.channel.unary_unary("/warmshelf.v1.CatalogService/Evil", lambda b: b, lambda b: b)
    with pytest.raises(grpc.RpcError):
        evil(b"", timeout=5)
    assert plain.health_of() == "SERVING"

    def ended(code: str) -> bool:
        return calls(pages.scrape(), "WatchArtifacts", code, kind="server_stream") == 1

    eventually(lambda: ended("Canceled"), "the cancelled watch is counted")
    eventually(lambda: ended("DeadlineExceeded"), "the watch that took too long is counted")
    text = pages.text()
    assert "Evil" not in text
    assert "Health" not in text
    labels = 'grpc_type="server_stream",grpc_service="warmshelf.v1.LeaseService",grpc_method="OpenSession"'
    seen = Scrape(text)
    assert seen[f"grpc_server_started_total{{{labels}}}"] == 1
    assert seen[f"grpc_server_handling_seconds_count{{{labels}}}"] == 0


def test_five_thousand_ids_leave_no_series_behind(pages: Pages, plain: Plain, register: Any, models: Path) -> None:
    """B59, G14: the number of lines does not depend on how many artifacts there are, nor on their names."""
    write_model(models / "m.safetensors", 1)
    ids = [f"sparrow-{number % 7}/canary-{number:05}@v1:x+y" for number in range(5000)]
    register("idle")
    plain.release(plain.acquire("idle").lease.lease_id)
    plain.release(plain.acquire("idle").lease.lease_id)
    all_of(plain.catalog.RegisterArtifact, [registration(artifact_id, models) for artifact_id in ids])
    full = pages.scrape()
    assert full['warmshelf_artifacts{state="registered"}'] == 5000
    assert full['warmshelf_artifacts{state="ready"}'] == 1
    all_of(plain.catalog.RemoveArtifact, [catalog_pb2.RemoveArtifactRequest(artifact_id=name) for name in ids])
    for hostile in ('quote"', "line\nbreak", "back\\slash", 'canary",le="1"} 1\ncanary_total{a="'):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ID"):
            plain.register(hostile, models / "m.safetensors")
    seen = pages.scrape()
    print(f"{full.text.count(chr(10))} lines with 5001 artifacts, {seen.text.count(chr(10))} after their removal")
    assert "canary" not in seen.text
    assert "sparrow" not in full.text
    assert seen.text.count("\n") <= LINES_MAX
    assert seen['warmshelf_artifacts{state="registered"}'] == 0
    assert seen['warmshelf_segments{kind="base"}'] == 1
    assert calls(seen, "RegisterArtifact", "OK") == 5001
    assert calls(seen, "RegisterArtifact", "InvalidArgument") == 4


def registration(artifact_id: str, models: Path) -> Any:
    request = catalog_pb2.RegisterArtifactRequest(artifact_id=artifact_id, defer_inspection=True)
    request.spec.source.uri = f"file://{models}/m.safetensors"
    return request


def all_of(method: Any, requests: list[Any]) -> None:
    """Make many calls, a few hundred at a time."""
    for start in range(0, len(requests), 500):
        for call in [method.future(request, timeout=30) for request in requests[start : start + 500]]:
            call.result()

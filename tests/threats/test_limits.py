"""Every limit: what just reaches it is served, one more is refused by a typed error, and so is ten times as much.

docs/threats.md has the table. What pushes may take, and what is a matter of time, is tried in files of their own.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit.fault_rows import is_nightly
from kit.models import write_model
from kit.plain import Plain
from kit.processes import Daemon, eventually
from kit.scrape import HTTP, pages_of
from threats.test_limits_of_pushes import LIMITS as PUSH_LIMITS
from threats.test_limits_of_time import SLOW
from warmshelf.errors import MalformedArtifact, WarmshelfError
from warmshelf.v1 import catalog_pb2
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.detect import detect
from warmshelfd.formats.peft import AdapterLimits
from warmshelfd.formats.tensorizer_boxes import CryptParser
from warmshelfd.settings import Settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "threats.md"
TIMES = 10

# --- what a file may ask for ----------------------------------------------------------


@dataclass
class MemoryFiles:
    """Files as a format sees them."""

    content: Mapping[str, bytes]

    def files(self) -> Mapping[str, int]:
        return {name: len(data) for name, data in self.content.items()}

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self.content[name][offset : offset + size]


def header(tensors: Mapping[str, list[int]], pad_bytes: int = 0, **metadata: str) -> bytes:
    """Return a file of U8 tensors, whose bytes are zeros."""
    told: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, shape in tensors.items():
        size = 1
        for dimension in shape:
            size *= dimension
        told[name] = {"dtype": "U8", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode().ljust(pad_bytes)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def cipher(passes: int, memory_bytes: int) -> bytes:
    """Return how a ``.tensors`` file says that its key comes from a passphrase."""
    derivation = struct.pack("<HHQQiH", 1, 1, passes, memory_bytes, 2, 16) + bytes(16)
    boxes = struct.pack("<HQ24sQ", 2, 1024, bytes(24), 1) + bytes(16)
    return struct.pack("<HQ", 2, len(derivation)) + derivation + struct.pack("<Q", len(boxes)) + boxes


def inspect(data: bytes, limits: FormatLimits) -> None:
    detect(MemoryFiles({"m.safetensors": data}), limits)


def derive(passes: int, memory_bytes: int, limits: FormatLimits) -> None:
    CryptParser("m.tensors", limits).boxes("w", 100, cipher(passes, memory_bytes))


FORMATS: dict[str, tuple[int, Callable[[int, FormatLimits], None]]] = {
    "header_bytes_max": (1000, lambda n, limits: inspect(header({"w": [1]}, n), limits)),
    "tensor_count_max": (50, lambda n, limits: inspect(header({f"t{i}": [1] for i in range(n)}), limits)),
    "element_count_max": (64, lambda n, limits: inspect(header({"w": [n]}), limits)),
    "rank_max": (8, lambda n, limits: inspect(header({"w": [1] * n}), limits)),
    "name_bytes_max": (512, lambda n, limits: inspect(header({"n" * n: [1]}), limits)),
    "metadata_bytes_max": (1000, lambda n, limits: inspect(header({"w": [1]}, k="x" * (n - len('{"k":""'))), limits)),
    "argon2_memory_bytes_max": (1 << 20, lambda n, limits: derive(1, n, limits)),
    "argon2_passes_max": (8, lambda n, limits: derive(n, 8192, limits)),
}
"""A small limit of each kind, and what asks for so much."""


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_file_asks_for_is_given_up_to_the_limit(name: str) -> None:
    limit, ask = FORMATS[name]
    limits = dataclasses.replace(FormatLimits(), **{name: limit})
    ask(limit, limits)
    for count in (limit + 1, TIMES * limit):
        with pytest.raises(MalformedArtifact) as refused:
            ask(count, limits)
        assert len(refused.value.message) < 1000


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\x1bb", "a\x7fb", "\x85", "n\u0000"])
def test_a_name_holds_no_control_character(name: str) -> None:
    with pytest.raises(MalformedArtifact):
        inspect(header({name: [1]}), FormatLimits())


# --- what callers may have ------------------------------------------------------------

LIMITS = {
    "artifact_count_max": 30,
    "sessions_max": 9,
    "leases_max": 12,
    "leases_per_session_max": 6,
    "streams_max": 8,
    "streams_per_session_max": 5,
    "calls_per_connection_max": 16,
    "message_bytes_max": 64 << 10,
    "call_metadata_bytes_max": 4 << 10,
    "push_chunk_bytes": 32 << 10,
}


@dataclass
class Caller:
    """Somebody who asks for more and more, and holds what he is given."""

    daemon: Daemon
    held: ExitStack
    plains: list[Plain] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def plain(self, index: int = 0) -> Plain:
        while len(self.plains) <= index:
            self.plains.append(self.held.enter_context(Plain(self.daemon.address)))
        return self.plains[index]

    def session(self, number: int) -> None:
        self.plain(number)

    def artifact(self, number: int) -> None:
        request = catalog_pb2.RegisterArtifactRequest(artifact_id=f"more/{number}", defer_inspection=True)
        request.spec.source.uri = f"file://{self.daemon.models}/m.safetensors"
        self.plain().catalog.RegisterArtifact(request, timeout=20)
        self.held.callback(self.plain().remove, f"more/{number}")

    def lease(self, number: int) -> None:
        self.plain().acquire("m")

    def lease_of_several(self, number: int) -> None:
        self.plain(number // 4 % 4).acquire("m")

    def stream(self, number: int) -> None:
        self._stream(self.plain())

    def stream_of_several(self, number: int) -> None:
        self._stream(self.plain(number % 4))

    def _stream(self, plain: Plain) -> None:
        lease = plain.acquire("m").lease.lease_id
        try:
            reading = plain.read(lease)
            next(reading)
            self.held.callback(reading.cancel)
        except grpc.RpcError:
            plain.release(lease)
            raise

    def ask(self, what: Callable[[int], None], count: int) -> int:
        """Ask so often; return how often it was given."""
        given = 0
        for number in range(count):
            try:
                what(number)
                given += 1
            except grpc.RpcError as error:
                self.refusals.append(_reason(error))
        return given


def _reason(error: grpc.RpcError) -> str:
    raw = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    info = error_details_pb2.ErrorInfo()
    told = any(detail.Unpack(info) for detail in status_pb2.Status.FromString(raw).details)
    return info.reason if told else f"untyped: {error}"


# The artifact that is leased counts as one, and so does the session of whoever asks.
COUNTED: dict[str, tuple[Callable[[Caller], Callable[[int], None]], int, str]] = {
    "artifact_count_max": (lambda caller: caller.artifact, 29, "CATALOG_FULL"),
    "sessions_max": (lambda caller: caller.session, 9, "TOO_MANY_SESSIONS"),
    "leases_per_session_max": (lambda caller: caller.lease, 6, "TOO_MANY_LEASES"),
    "leases_max": (lambda caller: caller.lease_of_several, 12, "TOO_MANY_LEASES"),
    "streams_per_session_max": (lambda caller: caller.stream, 5, "TOO_MANY_STREAMS"),
    "streams_max": (lambda caller: caller.stream_of_several, 8, "TOO_MANY_STREAMS"),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("limits")
    models = root / "models"
    models.mkdir()
    write_model(models / "m.safetensors", 1, 24 << 20)
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(root, Path(arena), models)
        it.start("--budget", "64MiB", *HTTP, env={f"WARMSHELF_{name.upper()}": str(n) for name, n in LIMITS.items()})
        with it.connect() as shelf:
            shelf.register("m", models / "m.safetensors")
            list(shelf.load("m"))
        yield it
        assert it.kill(15) == 0
        it.check()


def _is_quiet(daemon: Daemon) -> bool:
    seen = pages_of(daemon).scrape()
    return not any(seen[f"warmshelf_{what}"] for what in ("sessions", "leases", "streams"))


@pytest.mark.e2e
@pytest.mark.parametrize("name", COUNTED)
def test_what_callers_hold_is_given_up_to_the_limit(name: str, daemon: Daemon) -> None:
    """Then the one more and the tenfold; then all is let go, and the next one is served."""
    what, limit, reason = COUNTED[name]
    for count in (limit, limit + 1, TIMES * limit):
        eventually(lambda: _is_quiet(daemon), "nobody holds anything")
        with ExitStack() as held:
            caller = Caller(daemon, held)
            assert caller.ask(what(caller), count) == limit
            assert caller.refusals == [reason] * (count - limit)


@pytest.mark.e2e
def test_a_request_is_taken_up_to_the_limit(daemon: Daemon) -> None:
    limit = LIMITS["message_bytes_max"]

    def ask(size: int) -> str:
        request = catalog_pb2.RegisterArtifactRequest(artifact_id="long")
        request.spec.source.uri = "x" * size
        request.spec.source.uri = "x" * (2 * size - request.ByteSize())  # without what stands around it
        assert request.ByteSize() == size
        with pytest.raises(grpc.RpcError) as refused, Plain(daemon.address) as plain:
            plain.catalog.RegisterArtifact(request, timeout=20)
        return _reason(refused.value) if refused.value.trailing_metadata() else refused.value.code().name

    assert ask(limit) == "INVALID_SPEC"
    for size in (limit + 1, TIMES * limit):
        assert ask(size) in {"INVALID_REQUEST", "RESOURCE_EXHAUSTED"}


@pytest.mark.e2e
def test_a_calls_metadata_is_taken_up_to_the_limit_and_never_beyond(daemon: Daemon) -> None:
    """gRPC adds some of its own, whose size it tells; how long a deadline is written differs by a few bytes."""
    limit, digits, often = LIMITS["call_metadata_bytes_max"], 8, 5
    with _alone(daemon) as health:

        def ask(size: int) -> str:
            call = health.Check.future(health_pb2.HealthCheckRequest(), timeout=20, metadata=[("x", "y" * size)])
            assert call.code() in {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
            return str(call.details())

        refused = re.search(rf"\((\d+) vs\. {limit}\)", ask(limit))
        assert refused is not None
        added = int(refused[1]) - limit
        assert added < limit // 2
        assert not any(ask(limit - added - digits) for _ in range(often))
        for size in (limit - added + digits, limit + 1, TIMES * limit):
            assert all(ask(size) for _ in range(often))


@pytest.mark.e2e
def test_calls_beyond_the_limit_of_a_connection_wait_in_the_client(daemon: Daemon) -> None:
    limit = LIMITS["calls_per_connection_max"]
    eventually(lambda: _is_quiet(daemon), "nobody holds anything")
    with Plain(daemon.address) as plain, _alone(daemon) as other:
        watches = [plain.catalog.WatchArtifacts(catalog_pb2.WatchArtifactsRequest()) for _ in range(limit - 1)]
        for watch in watches:
            next(watch)
        request = health_pb2.HealthCheckRequest()
        late = [plain.health.Check.future(request, timeout=0.5) for _ in range(TIMES * limit)]
        assert {call.code() for call in late} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert other.Check(request, timeout=5).status == health_pb2.HealthCheckResponse.SERVING
        watches.pop().cancel()
        assert plain.health_of() == "SERVING"
        for watch in watches:
            watch.cancel()


@contextmanager
def _alone(daemon: Daemon) -> Iterator[health_pb2_grpc.HealthStub]:
    """Give a client with a connection of its own; those of one process otherwise share one."""
    with grpc.insecure_channel(daemon.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield health_pb2_grpc.HealthStub(channel)


# --- the table ------------------------------------------------------------------------

_SAFETENSORS = "tests/formats/test_safetensors_format.py"
_INSPECTIONS = "tests/shelf/test_inspections_stop.py"
_STALLED = "tests/threats/test_stalled.py"
_OF_TIME = "tests/threats/test_limits_of_time.py"
ELSEWHERE = {
    "AdapterLimits.*": "tests/formats/test_peft_limits.py::test_a_limit_is_reached_and_not_passed",
    "budget": "tests/e2e/test_cases_room.py::test_what_fits_exactly_fits_and_one_page_more_is_too_large",
    "format_small_file_bytes_max": f"{_SAFETENSORS}::test_a_long_file_is_not_a_small_one",
    "format_small_files_bytes_max": f"{_SAFETENSORS}::test_too_many_bytes_of_small_files_are_refused",
    "format_index_bytes_max": f"{_SAFETENSORS}::test_a_broken_index_is_refused",
    "inspection_bytes_max": f"{_INSPECTIONS}::test_inspections_wait_for_room_and_the_oldest_never_does",
    "*chunk_bytes": "tests/e2e/test_cases_chunks.py::test_tensors_arrive_exactly_whatever_the_size_of_a_chunk",
    "flight_bytes_max": f"{_STALLED}::test_stalled_readers_cost_a_bounded_memory_and_nobody_waits_for_them",
    "source_retry_seconds": "tests/sources/test_retrying.py::test_no_try_begins_after_the_time_is_up",
    "stall_seconds": f"{_OF_TIME}::test_who_takes_something_in_time_is_served_and_who_does_not_is_ended",
    "keepalive*": f"{_OF_TIME}::test_a_tcp_peer_may_be_silent_up_to_the_limit_and_one_at_the_socket_for_ever",
    "source_connect_seconds": f"{_OF_TIME}::test_a_server_may_take_its_time_to_accept_up_to_the_limit",
}
"""Limits that other files try: patterns of their names, and the test."""


def _rows() -> list[tuple[str, str]]:
    """Return what is limited, and by what."""
    text = DOCUMENT.read_text().partition("## Limits")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([^|]+) \| (.+?) \| .+ \|$", text, re.MULTILINE)[1:]


def test_every_limit_of_the_table_exists() -> None:
    rows = _rows()
    assert len(rows) >= 16
    known = {*Settings.model_fields, *(f"AdapterLimits.{one.name}" for one in dataclasses.fields(AdapterLimits))}
    for row, names in rows:
        found = re.findall(r"`([\w.]+)`", names)
        assert found, row
        assert set(found) <= known, row


def test_every_limit_of_the_table_is_tried() -> None:
    rows = _rows()
    named = {name for _, names in rows for name in re.findall(r"`([\w.]+)`", names)}
    here = {*LIMITS, *(f"format_{name}" for name in FORMATS)}
    tried = here | set(PUSH_LIMITS) | {"push_idle_seconds"} | set(SLOW) | {"source_attempts_max", "source_failures_max"}
    assert here <= named
    assert not [name for name in named - tried if not any(fnmatch(name, pattern) for pattern in ELSEWHERE)]
    assert not [test for test in ELSEWHERE.values() if is_nightly(test) is None]


def test_errors_that_name_a_limit_are_typed() -> None:
    reasons = {reason for _, _, reason in COUNTED.values()}
    assert reasons <= {error.reason for error in WarmshelfError.__subclasses__()}

"""G14: whatever callers name things, the number of series stays what it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kit.models import write_model
from kit.plain import Plain
from kit.processes import Daemon
from kit.scrape import HTTP, pages_of
from warmshelf.v1 import catalog_pb2, lease_pb2, transfer_pb2

pytestmark = pytest.mark.e2e

NAMES, SERIES_MAX = 2000, 2000
AT_ONCE = 200
MARK = "zzmark"
ODD = (
    '"',
    "\\",
    "\n",
    "{",
    "}",
    ",",
    "=",
    "#",
    " ",
    "\t",
    "\r",
    "\x7f",
    "\u2028",
    "\u00e9",
    "../",
    "%",
    '",le="1"} 1\n',
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    models = tmp_path / "models"
    models.mkdir()
    write_model(models / "m.safetensors", 1)
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(tmp_path, Path(arena), models)
        yield it.start("--budget", "64MiB", *HTTP)
        assert it.kill(15) == 0
        it.check()


def registered(name: str, uri: str) -> catalog_pb2.RegisterArtifactRequest:
    request = catalog_pb2.RegisterArtifactRequest(artifact_id=name, defer_inspection=True)
    request.spec.source.uri = uri
    return request


def series(daemon: Daemon) -> tuple[int, str]:
    text = pages_of(daemon).text()
    return sum(not line.startswith("#") for line in text.splitlines()), text


def test_two_thousand_names_of_each_kind_leave_no_series(daemon: Daemon) -> None:
    uri = f"file://{daemon.models}/m.safetensors"
    names = [f"{MARK}/{n}:le=inf+@{n % 7}".replace("=", "-") for n in range(NAMES)]
    hostile = [f"{MARK}{n}{ODD[n % len(ODD)]}x" for n in range(NAMES)]
    with Plain(daemon.address) as plain:
        plain.register("m", daemon.models / "m.safetensors")
        lease = plain.acquire("m").lease.lease_id
        for start in range(0, NAMES, AT_ONCE):
            good, bad = names[start : start + AT_ONCE], hostile[start : start + AT_ONCE]
            calls = [plain.catalog.RegisterArtifact.future(registered(name, uri), timeout=60) for name in good]
            assert {call.code() for call in calls} == {grpc.StatusCode.OK}
            refused = [plain.catalog.RegisterArtifact.future(registered(name, uri), timeout=60) for name in bad]
            refused += [plain.catalog.RegisterArtifact.future(registered("m2", name), timeout=60) for name in bad]
            acquires = [
                lease_pb2.AcquireLeaseRequest(session_id=plain.session_id, artifact_id="m", expected_digest=name)
                for name in bad
            ]
            refused += [plain.leases.AcquireLease.future(request, timeout=60) for request in acquires]
            assert grpc.StatusCode.OK not in {call.code() for call in refused}
            for name in bad[:20]:  # why a worker streams is a label
                request = transfer_pb2.ReadSegmentRequest(
                    session_id=plain.session_id, lease_id=lease, limit_bytes=1, fallback_reason=name[:40]
                )
                assert list(plain.transfer.ReadSegment(request, timeout=60))
        count, text = series(daemon)
        print(f"{count} series after {NAMES} names, {3 * NAMES} hostile ones and {NAMES // AT_ONCE * 20} reasons")
        assert count <= SERIES_MAX
        assert MARK not in text
        for name in names:
            plain.remove(name)
        plain.release(lease)
    assert series(daemon)[0] <= SERIES_MAX

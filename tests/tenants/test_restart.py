"""Each tenant's memory is taken over by its own after a stop and after a kill; what lies elsewhere is not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

import pytest

from kit.models import write_model
from kit.processes import eventually, read_all
from kit.tenants import TENANTS, Estate
from warmshelf import ArtifactState, errors


def _loaded(estate: Estate) -> dict[str, dict[str, bytes]]:
    """Load one artifact of the same ID and size for each tenant; return the bytes of its tensors."""
    found = {}
    for number, tenant in enumerate(TENANTS, 1):
        path = estate.daemon.models / f"{tenant}.safetensors"
        found[tenant] = write_model(path, number)
        with estate.connect(tenant) as shelf:
            shelf.register("m", f"file://{path}")
            shelf.acquire("m", timeout=20).release()
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_each_tenant_has_its_own_again_without_a_source(estate: Estate, number: signal.Signals) -> None:
    tensors = _loaded(estate.start())
    before = {tenant: estate.segments(tenant) for tenant in TENANTS}
    estate.daemon.kill(number)
    for path in estate.daemon.models.iterdir():
        path.unlink()
    estate.start()
    for tenant in TENANTS:
        assert estate.segments(tenant) == before[tenant]
        with estate.connect(tenant) as shelf, shelf.acquire("m", timeout=20) as lease:
            assert read_all(lease) == tensors[tenant]


@pytest.mark.parametrize("takes_the_name", [False, True])
def test_a_segment_that_was_moved_to_another_tenants_directory_is_never_served(
    estate: Estate, takes_the_name: bool
) -> None:
    tensors = _loaded(estate.start())
    estate.daemon.kill()
    (theirs,), (own,) = estate.segments("red"), estate.segments("blue")
    os.rename(estate.arena("red") / theirs, estate.arena("blue") / (own if takes_the_name else theirs))
    estate.start()
    with estate.connect("blue") as shelf:
        assert (shelf.get("m").state is ArtifactState.READY) is not takes_the_name
        with shelf.acquire("m", timeout=20) as lease:
            assert read_all(lease) == tensors["blue"]
    assert theirs not in estate.segments("blue")
    with estate.connect("red") as shelf, shelf.acquire("m", timeout=20) as lease:
        assert read_all(lease) == tensors["red"]


def test_killed_in_the_middle_of_a_load_of_one_tenant_the_other_has_all_of_its_own(estate: Estate) -> None:
    tensors = _loaded(estate.start())
    estate.daemon.kill()
    estate.start(failpoints="load.read=kill")
    path = estate.daemon.models / "more.safetensors"
    write_model(path, 7)
    with estate.connect("red", timeout=5) as shelf:
        shelf.register("more", f"file://{path}")

        def load() -> None:
            with contextlib.suppress(errors.WarmshelfError):  # or the next life comes in time for it
                shelf.acquire("more", timeout=5).release()

        thread = threading.Thread(target=load)
        thread.start()
        assert estate.daemon.wait() == -signal.SIGKILL
        estate.start()
        thread.join()
    for tenant in TENANTS:
        with estate.connect(tenant) as shelf, shelf.acquire("m", timeout=20) as lease:
            assert read_all(lease) == tensors[tenant]


def test_the_memory_of_a_tenant_that_is_none_any_more_is_given_back(estate: Estate) -> None:
    _loaded(estate.start())
    with estate.connect("blue") as shelf:
        lease = shelf.acquire("m", timeout=20)
        segment = memoryview(lease["layer.0.weight"])
        estate.daemon.kill(signal.SIGTERM)
    estate.start(tenants={"red": ""})
    assert estate.segments("blue") == []
    assert segment[:1]  # whoever maps it keeps it
    assert len(estate.segments("red")) == 1
    estate.daemon.kill(signal.SIGTERM)
    del lease, segment
    estate.start()
    with estate.connect("blue") as shelf:  # what it had registered is still known
        shelf.acquire("m", timeout=20).release()


def test_purge_empties_every_tenants_directory(estate: Estate) -> None:
    _loaded(estate.start())
    config = estate.daemon.root / "warmshelfd.toml"
    estate.daemon.kill(signal.SIGTERM)
    command = estate.daemon.command("--config", str(config), "--purge")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "removed 2 segments" in done.stdout
    assert [estate.segments(tenant) for tenant in TENANTS] == [[], []]


def test_directories_are_their_owners_alone_and_each_shows_one_tenant(estate: Estate) -> None:
    _loaded(estate.start())
    for tenant in TENANTS:
        assert estate.arena(tenant).stat().st_mode & 0o777 == 0o700
        seen = str(estate.arena(tenant))
        with estate.connect(tenant, arena=seen) as shelf, shelf.acquire("m", timeout=20) as lease:
            assert lease.transport == "mapped"
    eventually(lambda: all(len(estate.segments(tenant)) == 1 for tenant in TENANTS), "one segment in each")
    other = {"red": "blue", "blue": "red"}
    for tenant in TENANTS:  # a worker that sees another tenant's directory finds nothing of its own in it
        seen = str(estate.arena(other[tenant]))
        with estate.connect(tenant, arena=seen) as shelf, shelf.acquire("m", timeout=20) as lease:
            assert lease.transport == "streamed"

"""Redis drops what it holds by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.fleet import Fleet, fleet_on
from kit.models import write_model
from kit.processes import eventually, read_all
from kit.redis_server import redis_server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as server, fleet_on(server, tmp_path) as it:
        yield it


def test_a_registry_whose_keys_redis_drops_is_filled_again(fleet: Fleet) -> None:
    """R13: allkeys-lru with others' keys in the same server."""
    ids = [f"acme/{number}" for number in range(20)]
    tensors = write_model(fleet.models / "a.safetensors", 1)
    a, b = fleet.node(), fleet.node()
    with a.connect() as here, fleet.server.client() as client:
        for artifact_id in ids:
            here.register(artifact_id, fleet.models / "a.safetensors")
        fleet.agree(*ids)
        kept = set(client.keys())
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", str(client.info("memory")["used_memory"] + (1 << 20)))
        for number in range(20_000):
            client.set(f"others:{number % 5000}", bytes(1000))
            if number % 500 == 499:
                with here.acquire(ids[0]) as lease:
                    assert read_all(lease) == tensors
        client.config_set("maxmemory", "0")
        for key in client.scan_iter("others:*"):
            client.delete(key)
        eventually(lambda: kept <= set(client.keys()), "every key is there again", 60)
        fleet.agree(*ids, seconds=60)
        late = fleet.node()
        with late.connect() as there, b.connect() as beside:
            eventually(lambda: late.knows(*ids), "a new node knows every ID", 60)
            for shelf in (there, beside):
                with shelf.acquire(ids[7], timeout=20) as lease:
                    assert read_all(lease) == tensors

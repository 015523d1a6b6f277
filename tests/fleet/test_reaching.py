"""The ways to a registry in Redis: with the least rights, over TLS, through Sentinels, in a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from kit.fleet import Fleet, fleet_on
from kit.models import write_model
from kit.ports import free_port
from kit.processes import eventually
from kit.redis_server import RedisServer, TlsProxy, binary, redis_server

BUS_PORT_MAX = 65_535
ACL = (
    "warmshelf on >secret-word ~{warmshelf}:* +ping +select +hget +hmget +hscan +hset +hdel +xread +xadd +del +watch "
    "+unwatch +multi +exec +set +expire +getrange +sadd +srem +srandmember"
)


def share_one(fleet: Fleet, *ids: str) -> None:
    """Register on the first node, remove on the second."""
    path = fleet.models / "base.safetensors"
    if not path.exists():
        write_model(path, tag=1, size=4096)
    a, b = fleet.nodes
    for artifact_id in ids:
        with a.connect() as here, b.connect() as there:
            here.register(artifact_id, source=str(path))
            fleet.agree(artifact_id)
            with there.acquire(artifact_id):
                eventually(lambda here=here, artifact_id=artifact_id: bool(here.where(artifact_id)), "it is told where")  # type: ignore[misc]
            there.remove(artifact_id)
            eventually(lambda artifact_id=artifact_id: a.sync_of(artifact_id) is None, "it is removed")  # type: ignore[misc]


def test_the_documented_rights_are_enough_also_over_tls_and_no_secret_is_logged(tmp_path: Path) -> None:
    directory = tmp_path / "redis"
    directory.mkdir()
    documented = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    assert ACL.replace("secret-word", "PASSWORD") in documented
    with (
        redis_server(directory, users=[ACL]) as server,
        TlsProxy(server, tmp_path) as tls,
        fleet_on(server, tmp_path) as fleet,
    ):
        for _ in range(2):
            node = fleet.node(tls.uri(), begin=False)
            node.env = {
                "WARMSHELF_REGISTRY_USERNAME": "warmshelf",
                "WARMSHELF_REGISTRY_PASSWORD": "env:WORD",
                "WARMSHELF_REGISTRY_CA_FILE": str(tls.ca_file),
                "WORD": "secret-word",
            }
            node.begin()
        share_one(fleet, "acme/base")
        for node in fleet.nodes:
            assert "secret-word" not in node.log.read_text()


@contextmanager
def cluster_node(directory: Path) -> Iterator[RedisServer]:
    """Run a server of a cluster; its second port, 10,000 above the first, must be one too."""
    arguments = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    server = RedisServer(directory, arguments=arguments)
    while server.port >= BUS_PORT_MAX - 10_000:
        server = RedisServer(directory, arguments=arguments)
    try:
        yield server.start()
    finally:
        server.stop()


@contextmanager
def sentinel(directory: Path, master: RedisServer) -> Iterator[int]:
    port = free_port()
    config = directory / "sentinel.conf"
    config.write_text(
        f"port {port}\ndir {directory}\nsentinel monitor mymaster {master.host} {master.port} 1\n"
        "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 2000\n"
    )
    with (directory / "sentinel.log").open("ab") as log:
        process = subprocess.Popen([binary(), str(config), "--sentinel"], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def test_a_failover_by_sentinels_is_followed(server: RedisServer, tmp_path: Path) -> None:
    """R4."""
    for name in ("replica", "sentinel"):
        (tmp_path / name).mkdir()
    arguments = ("--replicaof", server.host, str(server.port), "--repl-diskless-sync-delay", "0")
    with (
        redis_server(tmp_path / "replica", arguments=arguments) as replica,
        sentinel(tmp_path / "sentinel", server) as port,
        fleet_on(server, tmp_path) as fleet,
    ):
        with redis.Redis(port=port) as asked:
            eventually(lambda: len(asked.sentinel_slaves("mymaster")) == 1, "the Sentinel knows the replica", 30)  # type: ignore[arg-type]
        for _ in range(2):
            fleet.node(f"redis+sentinel://127.0.0.1:{port}/mymaster/0")
        share_one(fleet, "acme/before")
        server.stop()
        with replica.client() as client:
            eventually(lambda: client.role()[0] == b"master", "the replica takes over", 30)  # type: ignore[index]
        share_one(fleet, "acme/after")


def test_the_node_of_a_cluster_that_has_the_slot_is_found(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("one", "two")]
    for directory in directories:
        directory.mkdir()
    with (
        cluster_node(directories[0]) as one,
        cluster_node(directories[1]) as two,
        fleet_on(one, tmp_path) as fleet,
    ):
        with one.client() as first, two.client() as second:
            first.execute_command("CLUSTER", "ADDSLOTS", *range(8192))
            second.execute_command("CLUSTER", "ADDSLOTS", *range(8192, 16384))
            first.execute_command("CLUSTER", "MEET", two.host, two.port)
            for client in (first, second):
                eventually(
                    lambda client=client: (
                        "cluster_slots_assigned:16384" in str(client.execute_command("CLUSTER", "INFO"))
                    ),  # type: ignore[misc]
                    "the nodes know each other",
                    30,
                )
        for asked in (one, two):
            fleet.node(f"redis+cluster://127.0.0.1:{asked.port}")
        share_one(fleet, "acme/base")

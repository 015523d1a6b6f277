"""What is pushed into Redis is on its disk when that is said."""

from __future__ import annotations

from pathlib import Path

from kit.redis_between import CutsAtFirst
from kit.redis_server import redis_server
from warmshelf.redis_uri import parse_store
from warmshelfd.redis_wire import Patience
from warmshelfd.sources.redis_writing import RedisWriter


def test_the_manifest_is_written_on_the_connection_on_which_its_way_to_the_disk_is_waited_for(tmp_path: Path) -> None:
    """A connection that is lost in between would leave the wait to one that has written nothing."""
    (tmp_path / "redis").mkdir()
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    with (
        redis_server(tmp_path / "redis", arguments=("--appendonly", "yes", "--appendfsync", "everysec")) as server,
        CutsAtFirst((server.host, server.port), "WAITAOF", ("HSET", "WAITAOF")) as between,
    ):
        writer = RedisWriter(f"redis://127.0.0.1:{between.port}/0/pushed", (), Patience(retry_seconds=5))
        writer.write("ab" * 16, {"file": str(tmp_path / "file")}, lambda: False)
        assert parse_store(writer.prefix).below("ab" * 16).name in str(server.client().keys())
        told = [seen for seen in between.seen if seen]
        assert told == [["HSET", "WAITAOF"], ["HSET", "WAITAOF"]]

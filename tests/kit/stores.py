"""Stores that can keep what is pushed, each with a look inside by a library that shares no code with what is tested."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from kit.redis_server import RedisServer
from kit.weed import ACCESS_KEY, SECRET_KEY, Bucket

ENV = {"KEY_OF_TEST": ACCESS_KEY, "SECRET_OF_TEST": SECRET_KEY}

LIMITS = "source_connect_seconds = 1\nsource_answer_seconds = 1\nsource_stall_seconds = 1\nsource_retry_seconds = 1\n"
"""Little patience, so that tests of servers that hang are short."""


class Store(ABC):
    """One store. ``address`` is where the daemon finds it: the server, or a proxy before it."""

    def __init__(self, address: str) -> None:
        self.address = address

    @property
    @abstractmethod
    def place(self) -> str:
        """What the daemon's spool is."""

    @abstractmethod
    def table(self) -> str:
        """What the daemon's file says of it."""

    @abstractmethod
    def keys(self) -> list[str]:
        """Return all that is there below the place."""

    @abstractmethod
    def pause(self) -> None:
        """Have it hang."""

    @abstractmethod
    def resume(self) -> None:
        """Have it go on."""

    def options(self, root: Path, **limits: str) -> list[str]:
        """Return what a daemon is started with to keep pushes here; its environment is ``ENV``."""
        path = root / "daemon.toml"
        path.write_text(LIMITS + "".join(f'{k} = "{v}"\n' for k, v in limits.items()) + self.table())
        return ["--config", str(path), "--spool", self.place]


class S3Store(Store):
    """A bucket of a real server."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(f"{bucket.server.host}:{bucket.server.port}")
        self._bucket = bucket

    @property
    def server_address(self) -> str:
        return f"{self._bucket.server.host}:{self._bucket.server.port}"

    @property
    def place(self) -> str:
        return f"{self._bucket.uri}/pushed"

    def table(self) -> str:
        return (
            f'[[source]]\nprefix = "{self._bucket.uri}"\nendpoint = "http://{self.address}"\n'
            'access_key_id = "env:KEY_OF_TEST"\nsecret_access_key = "env:SECRET_OF_TEST"\n'
        )

    def keys(self) -> list[str]:
        listed = self._bucket.server.client().list_objects_v2(Bucket=self._bucket.name)
        return sorted(one["Key"] for one in listed.get("Contents", []))

    def pause(self) -> None:
        self._bucket.server.pause()

    def resume(self) -> None:
        self._bucket.server.resume()


class RedisStore(Store):
    """A database of a real server."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(f"{server.host}:{server.port}")
        self._server = server

    @property
    def server_address(self) -> str:
        return f"{self._server.host}:{self._server.port}"

    @property
    def place(self) -> str:
        return f"redis://{self.address}/3/pushed"

    def table(self) -> str:
        return ""

    def keys(self) -> list[str]:
        with self._server.client(3) as client:
            return sorted(key.decode() for key in client.scan_iter())

    def pause(self) -> None:
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

"""A local S3 server for the benchmarks: SeaweedFS' ``weed``, from its wheel, on ports that are free.

It knows how to start and end one and how to put files there; boto3 writes. Both sides
of a comparison read from the same server, on the same machine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

READY_SECONDS_MAX = 60.0
"""Longest wait until it takes an object; that is 5 s here."""

LOOK_SECONDS = 0.1
BUCKET, REGION = "benchmark", "us-east-1"
_KEY, _SECRET = "benchmark-key", "benchmark-secret"
_PORTS = (
    *("-master.port", "-master.port.grpc", "-volume.port", "-volume.port.grpc"),
    *("-filer.port", "-filer.port.grpc", "-s3.port", "-s3.port.grpc", "-s3.port.iceberg", "-s3.port.lance"),
)


class ObjectStore:
    """One server that runs, and its bucket."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def uri(self, key: str) -> str:
        """Name an object of the bucket."""
        return f"s3://{BUCKET}/{key}"

    def put(self, path: Path, key: str) -> str:
        """Write a file to the bucket; return its URI."""
        self.client().upload_file(str(path), BUCKET, key)
        return self.uri(key)

    def client(self) -> Any:
        """Return boto3's client."""
        import boto3  # noqa: PLC0415 - takes half a second, and only this needs it

        return boto3.client("s3", endpoint_url=self.endpoint)

    @property
    def environment(self) -> dict[str, str]:
        """What AWS's tools, and all who find things as they do, are told."""
        return {
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        }

    def daemon_options(self, folder: Path) -> list[str]:
        """Return what tells a daemon of the server; it takes the key from the environment."""
        config = folder / "s3.toml"
        config.write_text(f'[[source]]\nprefix = "s3://{BUCKET}"\nendpoint = "{self.endpoint}"\n', encoding="utf-8")
        return ["--config", str(config), "--allow-source", f"s3://{BUCKET}"]


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Run a server whose files lie in the folder; this process's environment names it meanwhile."""
    folder.mkdir()
    users = [{"name": "all", "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}], "actions": ["Admin"]}]
    (folder / "users.json").write_text(json.dumps({"identities": users}), encoding="utf-8")
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    command = [str(Path(sys.executable).parent / "weed"), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-dir={folder}", f"-s3.config={folder}/users.json", "-volume.max=0"]
    command += [f"{option}={port}" for option, port in ports.items()]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    store = ObjectStore(f"http://127.0.0.1:{ports['-s3.port']}")
    before = dict(os.environ)
    os.environ.update(store.environment)
    try:
        _wait_ready(store, process)
        yield store
    finally:
        process.kill()  # nothing of it is kept
        process.wait()
        os.environ.clear()
        os.environ.update(before)


def _wait_ready(store: ObjectStore, process: subprocess.Popen[bytes]) -> None:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            store.client().create_bucket(Bucket=BUCKET)
            store.client().put_object(Bucket=BUCKET, Key="first", Body=b"x")
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("weed did not become ready") from error
            time.sleep(LOOK_SECONDS)
        else:
            return


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]

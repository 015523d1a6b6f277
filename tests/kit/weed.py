"""A real S3 server: SeaweedFS' ``weed`` from its wheel, on ports that are free."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme

from kit.ports import free_port
from kit.processes import eventually

ACCESS_KEY, SECRET_KEY = "AKID5CANARY1", "s3-canary-2-secret-key"
"""What the server's only user signs with; tests look for both where they must not be."""

PUBLIC_BUCKET = "public"
"""The bucket that everybody may read."""

REGION = "us-east-1"
START_SECONDS = 30
_PORTS = (
    *("-master.port", "-master.port.grpc", "-volume.port", "-volume.port.grpc"),
    *(
        "-filer.port",
        "-filer.port.grpc",
        "-s3.port",
        "-s3.port.https",
        "-s3.port.grpc",
        "-s3.port.iceberg",
        "-s3.port.lance",
    ),
)


class Weed:
    """One running server."""

    def __init__(self, host: str, port: int, tls_port: int, authority: Path, process: subprocess.Popen[bytes]) -> None:
        self.host, self.port, self.tls_port = host, port, tls_port
        self.authority = authority  # PEM file of who vouches for the server
        self._process = process

    def pause(self) -> None:
        """Stop it so that connections stay and nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def tls_endpoint(self) -> str:
        return f"https://{self.host}:{self.tls_port}"

    def bucket(self, name: str) -> Bucket:
        return Bucket(self, name)

    def client(self) -> Any:
        """Return boto3's client, which shares no code with what reads."""
        import boto3  # noqa: PLC0415 - takes half a second, and few tests need it
        from botocore.config import Config  # noqa: PLC0415

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )


class Bucket:
    """One bucket, written by boto3."""

    def __init__(self, server: Weed, name: str) -> None:
        self.server, self.name = server, name
        self._client = server.client()
        self._client.create_bucket(Bucket=name)

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def put_all(self, prefix: str, files: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(lambda name: self.put(f"{prefix}{name}", files[name]), files):
                pass

    def put_in_parts(self, key: str, data: bytes, part_bytes: int = 5 << 20) -> None:
        """Write as large files are written: the ETag is then none of the bytes."""
        place = {"Bucket": self.name, "Key": key}
        upload = {**place, "UploadId": self._client.create_multipart_upload(**place)["UploadId"]}
        parts = []
        for number, start in enumerate(range(0, len(data), part_bytes), 1):
            sent = self._client.upload_part(**upload, PartNumber=number, Body=data[start : start + part_bytes])
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=key)


@contextmanager
def weed(directory: Path) -> Iterator[Weed]:
    """Run a server whose files lie in the directory; give it once it has stored something."""
    users = [
        {"name": "user", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "actions": ["Admin"]},
        {"name": "anonymous", "actions": [f"Read:{PUBLIC_BUCKET}", f"List:{PUBLIC_BUCKET}"]},
    ]
    (directory / "users.json").write_text(json.dumps({"identities": users}))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "authority.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    command = [
        str(Path(sys.executable).parent / "weed"),
        *("server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *("-s3", f"-s3.config={directory}/users.json", "-volume.max=0", "-master.volumeSizeLimitMB=64"),
        *(f"-s3.cert.file={directory}/cert.pem", f"-s3.key.file={directory}/key.pem"),
        *(f"{option}={port}" for option, port in ports.items()),
    ]
    log = directory / "weed.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=directory)
    try:
        server = Weed("127.0.0.1", ports["-s3.port"], ports["-s3.port.https"], directory / "authority.pem", process)
        eventually(lambda: _stores(server, process), f"weed stores something; see {log}", START_SECONDS)
        yield server
    finally:
        process.send_signal(signal.SIGKILL)  # nothing of it is kept, and on SIGTERM it takes its time
        process.wait()


def _stores(server: Weed, process: subprocess.Popen[bytes]) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    assert process.poll() is None, "weed has ended"
    try:
        with urllib.request.urlopen(f"{server.endpoint}/status", timeout=1):
            pass
        client = server.client()
        client.create_bucket(Bucket=PUBLIC_BUCKET)
        client.put_object(Bucket=PUBLIC_BUCKET, Key="first", Body=b"x")
    except (urllib.error.URLError, ConnectionError, BotoCoreError, ClientError):
        return False
    return True


def _free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all of them different."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)

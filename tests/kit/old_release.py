"""What an earlier release left and how it spoke, without a line of today's code: its recorded files and descriptors."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kit.processes import Daemon

DATA = Path(__file__).parent.parent / "data"
RELEASES = sorted(path.name for path in DATA.iterdir() if path.is_dir())
PACKAGE = "warmshelf.v1"
CALL_SECONDS = 20
SEALED = 0o440


class OldRelease:
    """One release's recordings."""

    def __init__(self, name: str) -> None:
        self.directory = DATA / name
        contents = json.loads((self.directory / "contents.json").read_text())
        self.digests: dict[str, str] = contents["digests"]
        self.tensors = {
            artifact_id: {name: bytes.fromhex(data) for name, data in tensors.items()}
            for artifact_id, tensors in contents["tensors"].items()
        }

    def leave(self, daemon: Daemon) -> None:
        """Put what the release left where a daemon will look."""
        daemon.registry.parent.mkdir(parents=True)
        shutil.copy(self.directory / "registry.sqlite", daemon.registry)
        for path in (self.directory / "arena").iterdir():
            shutil.copyfile(path, daemon.arena / path.name)
            (daemon.arena / path.name).chmod(SEALED)  # which a checkout does not keep

    @property
    def calls(self) -> list[dict[str, Any]]:
        return list(json.loads((self.directory / "calls.json").read_text()))

    @cached_property
    def protos(self) -> descriptor_pb2.FileDescriptorSet:
        return descriptor_pb2.FileDescriptorSet.FromString((self.directory / "protos.binpb").read_bytes())

    @cached_property
    def classes(self) -> dict[str, Any]:
        """The message classes of the release, by full name, in a pool of their own."""
        pool = descriptor_pool.DescriptorPool()
        for file in self.protos.file:
            pool.Add(file)
        return dict(message_factory.GetMessageClassesForFiles([file.name for file in self.protos.file], pool))

    def message(self, name: str, **fields: Any) -> Any:
        return self.classes[f"{PACKAGE}.{name}"](**fields)


class OldClient:
    """A client made of a release's descriptors alone."""

    def __init__(self, release: OldRelease, address: str) -> None:
        self._release = release
        self._channel = grpc.insecure_channel(address)
        self._session = self.stream("LeaseService", "OpenSession", holder="old")
        self._session_id = next(self._session).session_id

    def __enter__(self) -> OldClient:  # noqa: PYI034
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.cancel()
        self._channel.close()

    def call(self, service: str, method: str, **fields: Any) -> Any:
        return self._method(self._channel.unary_unary, service, method)(
            self._release.message(f"{method}Request", **fields), timeout=CALL_SECONDS
        )

    def stream(self, service: str, method: str, **fields: Any) -> Any:
        return self._method(self._channel.unary_stream, service, method)(
            self._release.message(f"{method}Request", **fields)
        )

    def _method(self, make: Any, service: str, method: str) -> Any:
        answer = self._release.classes[f"{PACKAGE}.{method}Response"]
        return make(
            f"/{PACKAGE}.{service}/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def tensors(self, artifact_id: str) -> Iterator[tuple[str, bytes]]:
        """Acquire an artifact, stream its segment and take the tensors out as its layout says."""
        lease = self.call("LeaseService", "AcquireLease", session_id=self._session_id, artifact_id=artifact_id).lease
        chunks = self.stream(
            "TransferService", "ReadSegment", session_id=self._session_id, lease_id=lease.lease_id, offset_bytes=0
        )
        image = bytearray()
        for chunk in chunks:
            assert chunk.offset_bytes == len(image)
            image += chunk.data
        yield from tensors_of(self._release, bytes(image))
        self.call("LeaseService", "ReleaseLease", session_id=self._session_id, lease_id=lease.lease_id)


def tensors_of(release: OldRelease, image: bytes) -> Iterator[tuple[str, bytes]]:
    """Read a segment as format 1 is described: a header with four sections, the second of which is the layout."""
    magic, version, header_bytes, _, size = struct.unpack_from("<8sII32sQ", image)
    assert (magic, version, header_bytes) == (b"WARMSHLF", 1, 4096)
    assert len(image) <= size
    _, (offset, length) = (struct.unpack_from("<QQ", image, 56 + index * 24) for index in range(2))
    layout = release.classes[f"{PACKAGE}.Layout"].FromString(image[offset : offset + length])
    for tensor in layout.tensors:
        yield tensor.name, image[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]

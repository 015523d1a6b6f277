"""Every call against what belongs to another tenant (T14): it answers as for what never was, and gives no byte of it.

Each call of the daemon has a row here, so that a new one without a row fails.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import crc32c
import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from kit.guarded import methods, opened, reason_of
from kit.marked import Mark, marked, owners
from kit.models import safetensors_bytes
from kit.tenants import STRANGER, Estate
from warmshelf.v1 import (
    alias_pb2,
    artifact_pb2,
    capabilities_pb2,
    catalog_pb2,
    lease_pb2,
    push_pb2,
    residency_pb2,
    transfer_pb2,
)
from warmshelfd.domain.roles import CALLS

SECONDS = 20
SIZE = 64 << 10
PUSHED = safetensors_bytes({"w": ("U8", (SIZE,), marked(Mark(1, 2, 1), SIZE))})


@dataclass(frozen=True)
class Ids:
    """What a call may name; all equally long, so that an answer's text tells nothing by its length."""

    artifact_id: str
    alias: str
    session_id: str
    lease_id: str
    push_id: str
    source: str = ""

    def all(self) -> list[str]:
        return [self.artifact_id, self.alias, self.session_id, self.lease_id, self.push_id]


def never(source: str) -> Ids:
    """What there never was."""
    return Ids("acme/none", "ali-none", *(secrets.token_hex(16) for _ in range(3)), source)


def _registration(ids: Ids) -> catalog_pb2.RegisterArtifactRequest:
    spec = artifact_pb2.ArtifactSpec(source=artifact_pb2.Source(uri=ids.source))
    return catalog_pb2.RegisterArtifactRequest(artifact_id=ids.artifact_id, spec=spec)


def _begin(ids: Ids) -> push_pb2.BeginPushRequest:
    file = push_pb2.PushFile(name="m.safetensors", size_bytes=len(PUSHED))
    return push_pb2.BeginPushRequest(push_id=ids.push_id, artifact_id="acme/pushed", files=[file])


def _write(ids: Ids) -> push_pb2.WritePushRequest:
    return push_pb2.WritePushRequest(push_id=ids.push_id, data=PUSHED, crc32c=crc32c.crc32c(PUSHED))


_SHA256 = hashlib.sha256(PUSHED).digest()
_OURS: dict[str, Callable[[Ids], Any]] = {
    "CatalogService/GetArtifact": lambda i: catalog_pb2.GetArtifactRequest(artifact_id=i.artifact_id),
    "CatalogService/ListArtifacts": lambda _: catalog_pb2.ListArtifactsRequest(),
    "CatalogService/WatchArtifacts": lambda _: catalog_pb2.WatchArtifactsRequest(),
    "CatalogService/VerifyArtifact": lambda i: catalog_pb2.VerifyArtifactRequest(artifact_id=i.artifact_id),
    "CatalogService/LoadArtifact": lambda i: catalog_pb2.LoadArtifactRequest(artifact_id=i.artifact_id),
    "AliasService/ListAliases": lambda _: alias_pb2.ListAliasesRequest(),
    "AliasService/SetAlias": lambda i: alias_pb2.SetAliasRequest(name=i.alias, artifact_id=i.artifact_id),
    "AliasService/RollBackAlias": lambda i: alias_pb2.RollBackAliasRequest(name=i.alias),
    "CapabilitiesService/GetCapabilities": lambda _: capabilities_pb2.GetCapabilitiesRequest(),
    "CapabilitiesService/GetCapacity": lambda i: capabilities_pb2.GetCapacityRequest(like_artifact_id=i.artifact_id),
    "CapabilitiesService/SetBudget": lambda _: capabilities_pb2.SetBudgetRequest(budget_bytes=32 << 20),
    "ResidencyService/ListResidency": lambda i: residency_pb2.ListResidencyRequest(artifact_id=i.artifact_id),
    "LeaseService/OpenSession": lambda _: lease_pb2.OpenSessionRequest(holder="somebody"),
    "LeaseService/ListLeases": lambda i: lease_pb2.ListLeasesRequest(artifact_id=i.artifact_id),
    "LeaseService/AcquireLease": lambda i: lease_pb2.AcquireLeaseRequest(
        session_id=i.session_id, artifact_id=i.artifact_id
    ),
    "TransferService/ReadLayout": lambda i: transfer_pb2.ReadLayoutRequest(
        session_id=i.session_id, lease_id=i.lease_id
    ),
    "TransferService/ReadSegment": lambda i: transfer_pb2.ReadSegmentRequest(
        session_id=i.session_id, lease_id=i.lease_id
    ),
    "TransferService/ReadTensors": lambda i: transfer_pb2.ReadTensorsRequest(
        session_id=i.session_id, lease_id=i.lease_id
    ),
    "LeaseService/ReleaseLease": lambda i: lease_pb2.ReleaseLeaseRequest(session_id=i.session_id, lease_id=i.lease_id),
    "PushService/WritePush": _write,
    "PushService/FinishPush": lambda i: push_pb2.FinishPushRequest(push_id=i.push_id, file_sha256=[_SHA256]),
    "PushService/AbandonPush": lambda i: push_pb2.AbandonPushRequest(push_id=i.push_id),
    "PushService/BeginPush": _begin,
    "CatalogService/EvictArtifact": lambda i: catalog_pb2.EvictArtifactRequest(artifact_id=i.artifact_id, drain=True),
    "CatalogService/RemoveArtifact": lambda i: catalog_pb2.RemoveArtifactRequest(artifact_id=i.artifact_id),
    "AliasService/RemoveAlias": lambda i: alias_pb2.RemoveAliasRequest(name=i.alias),
    "CatalogService/RegisterArtifact": _registration,
    "CatalogService/RegisterArtifacts": lambda i: catalog_pb2.RegisterArtifactsRequest(requests=[_registration(i)]),
}
"""A request for every call, in an order in which its owner can make all of them; what makes something comes last."""

ROWS: dict[str, Callable[[Ids], Any]] = {
    **{f"warmshelf.v1.{call}": row for call, row in _OURS.items()},
    "grpc.health.v1.Health/Check": lambda _: health_pb2.HealthCheckRequest(),
    "grpc.health.v1.Health/Watch": lambda _: health_pb2.HealthCheckRequest(),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": lambda _: reflection_pb2.ServerReflectionRequest(
        list_services=""
    ),
}


TO_ITS_OWNER = {
    "SetAlias": "ALIAS_MOVED",
    "SetBudget": "PERMISSION_DENIED",
}
"""What its owner is refused; it could do all else."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended: the reason and text of a refusal, or all that was answered."""

    reason: str
    text: str
    answers: bytes


def send(channel: grpc.Channel, call: str, request: Any) -> Iterator[Any]:
    method = methods()[call]
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    stub = getattr(channel, kind)(
        f"/{call}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    answer = stub(iter([request]) if method.client_streaming else request, timeout=SECONDS)
    if not method.server_streaming:
        yield answer
        return
    for message in answer:
        yield message
        is_all = call.endswith("WatchArtifacts") and message.HasField("snapshot_complete")
        if is_all or call.endswith(("OpenSession", "Health/Watch")):
            answer.cancel()
            return


def outcome(channel: grpc.Channel, call: str, ids: Ids) -> Outcome:
    try:
        answers = b"".join(timeless(message) for message in send(channel, call, ROWS[call](ids)))
    except grpc.RpcError as error:
        return Outcome(reason_of(error), error.details(), b"".join(str(v).encode() for v in error.trailing_metadata()))
    return Outcome("", "", answers)


def timeless(message: Message) -> bytes:
    """Return a message without its times, whose lengths differ from one moment to the next."""
    told = type(message)()
    told.CopyFrom(message)
    _forget_times(told)
    return told.SerializeToString()


def _forget_times(message: Message) -> None:
    if isinstance(message, Timestamp):
        message.Clear()
        return
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in [value] if isinstance(value, Message) else value:
                _forget_times(one)


@dataclass
class Scene:
    """What the first tenant has: an artifact that is leased, an alias, a push that is half way."""

    estate: Estate
    channel: grpc.Channel
    theirs: Ids


@pytest.fixture
def scene(either: Estate) -> Iterator[Scene]:
    path = either.daemon.models / "secret.safetensors"
    path.write_bytes(safetensors_bytes({"w": ("U8", (SIZE,), marked(Mark(1, 1, 1), SIZE))}))
    with ExitStack() as stack:
        channel = stack.enter_context(opened(either.channel("red")))
        open_session = _sessions(channel)
        session = open_session(lease_pb2.OpenSessionRequest(holder="the holder"), timeout=10 * SECONDS)
        stack.callback(session.cancel)
        source = f"file://{path}"
        lease_id, push_id = secrets.token_hex(16), secrets.token_hex(16)
        ids = Ids("acme/real", "ali-real", next(session).session_id, lease_id, push_id, source)
        acquire = lease_pb2.AcquireLeaseRequest(
            session_id=ids.session_id, artifact_id=ids.artifact_id, lease_id=lease_id
        )
        moved = alias_pb2.SetAliasRequest(name=ids.alias, artifact_id=ids.artifact_id, expected_artifact_id="acme/else")
        for call, request in (
            ("CatalogService/RegisterArtifact", _registration(ids)),
            ("LeaseService/AcquireLease", acquire),
            ("CatalogService/RegisterArtifact", _registration(replace(ids, artifact_id="acme/else"))),
            ("AliasService/SetAlias", alias_pb2.SetAliasRequest(name=ids.alias, artifact_id="acme/else")),
            ("AliasService/SetAlias", moved),
            ("PushService/BeginPush", _begin(ids)),
        ):
            assert list(send(channel, f"warmshelf.v1.{call}", request))
        yield Scene(either, channel, ids)


def _sessions(channel: grpc.Channel) -> Any:
    return channel.unary_stream(
        "/warmshelf.v1.LeaseService/OpenSession",
        request_serializer=lease_pb2.OpenSessionRequest.SerializeToString,
        response_deserializer=lease_pb2.OpenSessionResponse.FromString,
    )


def test_every_call_has_a_row() -> None:
    assert set(ROWS) == set(CALLS)


def test_who_is_not_the_owner_is_answered_as_for_what_never_was(scene: Scene) -> None:
    theirs = scene.theirs
    for who in ("blue", STRANGER):
        with opened(scene.estate.channel(who)) as channel:
            for call in ROWS:
                for real, made_up in ((theirs, never(theirs.source)), (_own_session(theirs), never(theirs.source))):
                    found, expected = outcome(channel, call, real), outcome(channel, call, made_up)
                    assert found.reason == expected.reason, (who, call)
                    assert _neutral(found.text, real) == _neutral(expected.text, made_up), (who, call)
                    assert len(found.answers) == len(expected.answers), (who, call)
                    for dump in (found.answers, found.text.encode()):
                        assert not owners(dump), (who, call)
                        assert b"the holder" not in dump, (who, call)
    for call in ROWS:  # and nothing of it has changed for its owner
        found = outcome(scene.channel, call, theirs)
        assert found.reason == TO_ITS_OWNER.get(call.rpartition("/")[2], ""), (call, found.text)


def _own_session(ids: Ids) -> Ids:
    """The same, on a session that never was: the lease's number alone must not do either."""
    return replace(ids, session_id=secrets.token_hex(16))


def _neutral(text: str, ids: Ids) -> str:
    for one in ids.all():
        text = text.replace(one, "*").replace(f"{one[:8]}...", "*")
    return text

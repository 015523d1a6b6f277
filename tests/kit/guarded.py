"""Daemons whose TCP address speaks TLS, with an identity for each role, and calls of every method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from kit.authority import Authority, Pair, channel
from kit.processes import Daemon
from warmshelf.v1 import (
    alias_pb2,
    capabilities_pb2,
    catalog_pb2,
    lease_pb2,
    push_pb2,
    residency_pb2,
    transfer_pb2,
)

SECONDS = 20
ROLES = ("reader", "registrar", "operator")
_OURS = (alias_pb2, capabilities_pb2, catalog_pb2, lease_pb2, push_pb2, residency_pb2, transfer_pb2)
_FILES = (*_OURS, health_pb2, reflection_pb2)


def methods() -> dict[str, Any]:
    """Every method of the daemon's protos, of health and of reflection."""
    services = [service for file in _FILES for service in file.DESCRIPTOR.services_by_name.values()]
    return {f"{service.full_name}/{method.name}": method for service in services for method in service.methods}


@dataclass
class Guarded:
    """One such daemon. Who may call is known by tokens, or else by certificates."""

    daemon: Daemon
    by_certificate: bool
    authority: Authority = field(default_factory=Authority)

    def token_file(self, role: str) -> Path:
        return self.daemon.root / f"{role}.token"

    def token(self, role: str) -> str:
        return f"token-of-the-{role}-0123456789"

    def pair(self, role: str) -> Pair:
        return self.authority.issue("someone", dns=["a.pod"], uri=["spiffe://x/y", f"spiffe://cluster/{role}"])

    def channel(self, pair: Pair | None = None, token: str = "") -> grpc.Channel:
        return channel(self.daemon.tcp_address, self.authority.cert, pair, token)

    def channel_of(self, role: str) -> grpc.Channel:
        return self.channel(self.pair(role)) if self.by_certificate else self.channel(token=self.token(role))

    def renew(self, pair: Pair) -> None:
        """Put another certificate in the place of the daemon's."""
        pair.write(self.daemon.root, "daemon")

    def start(self, *options: str, more: str = "", env: Mapping[str, str] | None = None) -> Guarded:
        """Start the daemon; ``more`` is more of its configuration."""
        root = self.daemon.root
        self.renew(self.authority.issue("daemon", dns=["localhost"]))
        (root / "ca.pem").write_bytes(self.authority.cert)
        rows = ["credentials_seconds = 0.05"]
        for role in ROLES:
            self.token_file(role).write_text(self.token(role) + "\n")
            subject = f'subject = "uri:spiffe://cluster/{role}"'
            known_by = subject if self.by_certificate else f'token = "file:{self.token_file(role)}"'
            rows += ["[[identity]]", f'name = "the-{role}"', known_by, f'roles = ["{role}"]']
        config = root / "warmshelfd.toml"
        config.write_text("\n".join([*rows, more]))
        files = ["--listen-cert-file", f"{root}/daemon.pem", "--listen-key-file", f"{root}/daemon.key"]
        files += ["--listen-client-ca-file", f"{root}/ca.pem"] if self.by_certificate else []
        self.daemon.start("--budget", "16MiB", "--config", str(config), *files, *options, env=env)
        return self


def refusal(opened: grpc.Channel, call: str) -> str:
    """Call a method with an empty request; return the reason it is refused for, "" if it is answered."""
    method = methods()[call]
    request = message_factory.GetMessageClass(method.input_type)()
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    send = getattr(opened, kind)(
        f"/{call}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    try:
        answer = send(iter([request]) if method.client_streaming else request, timeout=SECONDS)
        if method.server_streaming:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        return reason_of(error)
    return ""


def reason_of(error: Any) -> str:
    """Return the reason in what a call failed with, or else its code."""
    raw = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(raw).details:
        if detail.Unpack(info):
            return str(info.reason)
    return str(error.code().name)


@contextmanager
def opened(channel: grpc.Channel) -> Iterator[grpc.Channel]:
    """Close a channel in the end."""
    try:
        yield channel
    finally:
        channel.close()

"""Which node this is, and where others reach it."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from warmshelf.types import Node
from warmshelfd.settings import Settings

_EVERY = ("0.0.0.0", "::")  # noqa: S104 - compared with
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_node(settings: Settings) -> Node:
    """Return this node. It is the same after a restart, and another one for each daemon of a host."""
    host = socket.gethostname()
    name = settings.node_name or re.sub(r"[^A-Za-z0-9.-]+|^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", host)[:64] or "node"
    boot_id = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
    what = "\0".join((boot_id, host, settings.node_name or "", settings.registry_copy))
    node_id = hashlib.blake2b(what.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return Node(node_id, name, settings.node_zone or "")


def advertised_address(settings: Settings, addresses: Sequence[str]) -> str:
    """Return IP:PORT at which others reach this node, given what is listened on; "" if nobody said."""
    if settings.advertise is None:
        return ""
    heard = [one.rpartition(":") for one in addresses if not one.startswith("unix:")]
    right = [port for host, _, port in heard if host.strip("[]") in (settings.advertise.ip, *_EVERY)]
    port = next((port for port in (*right, *(port for _, _, port in heard))), "")
    return settings.advertise.at(int(port)) if port or settings.advertise.port else ""

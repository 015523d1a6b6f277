"""What is seen of the fleet from outside: by the kernel, by the daemons' own pages, and by calls."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.fleet import Node
from kit.scrape import pages_of
from soak.stage import Stage, live_of
from warmshelf.errors import ArtifactNotFound
from warmshelf.types import Capacity, SyncState

QUIET_SECONDS = 60.0
"""No daemon takes so long to come to rest, however busy the machine is."""


def kernel_of(node: Node) -> dict[str, Any]:
    """Return what the kernel says of a daemon."""
    process = Path(f"/proc/{node.pid}")
    leads_to = []
    for link in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            leads_to.append(str(link.readlink()))
    of_arena = sum(one.startswith(f"{node.arena}/") for one in leads_to)
    files = [path.stat() for path in node.arena.iterdir()]
    copies = node.registry.parent.glob(f"{node.registry.name}*")
    return {
        "rss_kib": node.memory_bytes() >> 10,
        "fds": len(leads_to) - of_arena,
        "arena_fds": of_arena,
        "threads": len([*(process / "task").iterdir()]),
        "arena_inodes": len(files),
        "arena_kib": sum(file.st_blocks for file in files) // 2,
        "registry_kib": sum(path.stat().st_size for path in copies) >> 10,
    }


def sample(stage: Stage, begun: float) -> dict[str, Any]:
    """Return what there is to be seen at one moment, while everything goes on."""
    told = stage.ask()
    nodes = {}
    for name, node in stage.nodes.items():
        with suppress(FileNotFoundError):  # a file of the arena that went meanwhile: no sample
            nodes[name] = {
                "age_seconds": round(time.monotonic() - stage.started[name], 1),
                **kernel_of(node),
                **_page(node),
                **{
                    f"{kind}_{key}": told[f"{name} {kind}"].get(key)
                    for kind in ("mapped", "streamed")
                    for key in _TIMES
                },
            }
    return {"at_seconds": round(time.monotonic() - begun, 1), "outage": stage.outage, "nodes": nodes}


_TIMES = ("p50_ms", "p99_ms")


def _page(node: Node) -> dict[str, Any]:
    scrape = pages_of(node).scrape()
    known = sum(value for (name, _), value in scrape.values.items() if name == "warmshelf_artifacts")
    return {
        "leases": int(scrape["warmshelf_leases"]),
        "sessions": int(scrape["warmshelf_sessions"]),
        "artifacts": int(known),
    }


# --- checkpoints ---


def checkpoint(stage: Stage, begun: float) -> dict[str, Any]:
    """Bring everything to rest, look at what there is, and set it going again. Redis is there."""
    told = stage.hold()
    back, faults = _settle(stage, live_of(told))
    looks = {name: _look(node) for name, node in stage.nodes.items()}
    with stage.fleet.server.client() as client:
        redis = {"registrations": client.hlen("{warmshelf}:registrations"), "kib": client.info()["used_memory"] >> 10}
    faults += [f"{name}: {text}" for name, (_, found) in looks.items() for text in found]
    wrong = [f"the {name} saw: {text}" for name, one in told.items() for text in one["wrong"]]
    stage.go()
    return {
        "at_seconds": round(time.monotonic() - begun, 1),
        "brought_back": back,
        "faults": faults,
        "wrong": wrong,
        "nodes": {name: seen for name, (seen, _) in looks.items()},
        "redis": redis,
        "told": {
            name: {"counts": one["counts"], "refused": one["refused"], "own": one["own"]} for name, one in told.items()
        },
    }


def _settle(stage: Stage, must: set[str]) -> tuple[int, list[str]]:
    """Wait until every node knows what it must and nothing else, and nobody has anything of it.

    Return how many IDs came back, and what is not so. A Redis that was emptied before the other node heard of a removal
    gets the ID again from that node, as documented.
    """
    back: set[str] = set()
    faults: list[str] = []

    def is_settled() -> bool:
        faults[:] = [f"{name}: {text}" for name, node in stage.nodes.items() for text in _unrest(node, must, back)]
        return not faults

    within(is_settled, QUIET_SECONDS)
    return len(back), faults


def _unrest(node: Node, must: set[str], back: set[str]) -> Iterator[str]:
    with node.connect() as shelf:
        known = {one.artifact_id: one for one in shelf.list()}
        for artifact_id in known.keys() - must:
            back.add(artifact_id)
            with suppress(ArtifactNotFound):  # the other node's removal was quicker
                shelf.remove(artifact_id)
            yield f"{artifact_id} is there"
    if lost := must - known.keys():
        yield f"{len(lost)} registrations lost, such as {min(lost)}"
    if untold := [
        one.artifact_id for one in known.values() if not one.sync or one.sync.state is not SyncState.PUBLISHED
    ]:
        yield f"{len(untold)} registrations not published, such as {untold[0]}"
    page = _page(node)
    if page["leases"] or page["sessions"]:
        yield f"{page['leases']} leases and {page['sessions']} sessions are left"


def _look(node: Node) -> tuple[dict[str, Any], list[str]]:
    seen: dict[str, Any] = {}
    faults: list[str] = []

    def is_as_told() -> bool:  # what was mapped has just been let go of
        with node.connect() as shelf:
            capacity = shelf.capacity()
        seen.update(kernel_of(node))
        faults[:] = _faults_of(node, seen, capacity)
        return not faults

    within(is_as_told, QUIET_SECONDS)
    return {**seen, **_page(node)}, faults


def _faults_of(node: Node, seen: Mapping[str, Any], capacity: Capacity) -> list[str]:
    segments = len(node.segments())
    found = []
    if node.leftovers():
        found.append(f"left behind: {node.leftovers()}")
    if capacity.reserved_bytes or capacity.unnamed_bytes or capacity.held_bytes:
        found.append(f"nobody has anything, books say {capacity}")
    if seen["arena_kib"] << 10 != capacity.resident_bytes:
        found.append(f"files have {seen['arena_kib']} KiB, books say {capacity}")
    if seen["arena_inodes"] != segments + 1:  # and the lock
        found.append(f"{seen['arena_inodes']} files for {segments} segments")
    return found


def within(condition: Callable[[], bool], seconds: float) -> bool:
    """Say whether a condition comes to hold within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.05)
    return True

"""A hundred callers want one cold artifact at once, round after round."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kit.models import filled, safetensors_bytes
from kit.often import times
from kit.plain import Plain
from kit.processes import Daemon, eventually
from kit.web import Web, serving

CALLERS = 100
SIZE = 300_000
"""Of the tensor: more than the head that is read when the source is looked at."""


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as it:
        yield it


def ask_in_rounds(daemon: Daemon, web: Web, round_count: int) -> None:
    """Ask; in every other round whoever asked first gives up, with some of the others."""
    web.put("/m", {"a.safetensors": safetensors_bytes(filled(7, SIZE))})
    daemon.start(*opening(daemon.root, web.url))
    chance = random.Random(round_count)
    with Plain(daemon.address) as plain:
        plain.register("a", f"{web.url}/m/a.safetensors")
        for number in range(round_count):
            before = len(reads(web))
            calls = [plain.acquire_later("a") for _ in range(CALLERS)]
            leavers = {0, *chance.sample(range(CALLERS), 30)} if number % 2 else set()
            for leaver in leavers:
                calls[leaver].cancel()
            answers = [call.result() for at, call in enumerate(calls) if at not in leavers]
            assert len({answer.lease.generation for answer in answers}) == 1
            assert len({answer.layout.segments[0].segment_id for answer in answers}) == 1
            assert len(reads(web)) == before + 1, f"round {number}"
            for answer in answers:
                plain.release(answer.lease.lease_id)
            eventually(lambda: evicted(plain), "nobody holds it any more")


def opening(directory: Path, url: str) -> list[str]:
    """Return options that allow a server on this machine."""
    config = directory / "config.toml"
    config.write_text(f'[[source]]\nprefix = "{url}"\nallow_private = true\n')
    return ["--config", str(config), "--allow-source", url]


def reads(web: Web) -> list[int]:
    """Return where the requests began that asked for the tensor's end."""
    asked = [asked.range for asked in list(web.asked) if asked.range is not None]
    return [first for first, last in asked if last >= SIZE]


def evicted(plain: Plain) -> bool:
    """Evict, once the leases have ended that were granted to those who had left."""
    try:
        plain.evict("a")
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        return False
    return True


def test_a_hundred_callers_share_one_read_round_after_round(daemon: Daemon, web: Web) -> None:
    """C1, C2: counted by the server that is read from."""
    ask_in_rounds(daemon, web, 6)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_in_a_thousand_rounds_of_a_hundred_callers_the_source_is_read_a_thousand_times(
    daemon: Daemon, web: Web
) -> None:
    """C1, C2, G10."""
    ask_in_rounds(daemon, web, times(1000))

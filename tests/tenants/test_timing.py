"""C10: how long an answer takes does not tell a tenant what another has.

A tenant asks, in turns and in an order that a coin decides, for what another has and for what nobody has. The answers
are the same (``test_matrix.py``); here so are the times. What is shared with others all the same, such as the cache of
a disk, stands in docs/threats.md.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import warmshelf
from kit.guarded import opened, reason_of
from kit.models import write_model
from kit.ranks import Verdict, compare
from kit.tenants import Estate, estate_in
from tenants.test_matrix import ROWS, SECONDS, Ids
from warmshelf.v1 import lease_pb2, lease_pb2_grpc

pytestmark = pytest.mark.e2e

KINDS = 16
"""Of each of the two, so that no ID's own way through a table counts."""
SHORT, LONG = 300, 4000
"""Pairs of calls: what shows at once, and what takes its time."""
CONTENTS_SHORT, CONTENTS_LONG = 30, 400
"""Pairs of contents."""

ASKED = {
    "CatalogService/GetArtifact": "ARTIFACT_NOT_FOUND",
    "LeaseService/AcquireLease": "ARTIFACT_NOT_FOUND",
    "AliasService/RollBackAlias": "ARTIFACT_NOT_FOUND",
    "CatalogService/EvictArtifact": "ARTIFACT_NOT_FOUND",
    "CapabilitiesService/GetCapacity": "ARTIFACT_NOT_FOUND",
    "LeaseService/ReleaseLease": "",
}
"""The calls, and what they are answered whether there is such a thing or not."""


@dataclass
class Neighbours:
    """What one tenant has, what nobody has, and another tenant who asks."""

    channel: grpc.Channel
    own_session: str
    theirs: list[Ids]
    nobodys: list[Ids]

    def ask(self, call: str) -> Callable[[Ids], float]:
        """Return what makes a call and gives its seconds."""
        send: Any = self.channel.unary_unary(f"/warmshelf.v1.{call}")
        row, expected = ROWS[f"warmshelf.v1.{call}"], ASKED[call]

        def asked(ids: Ids) -> float:
            own = replace(ids, session_id=self.own_session) if call.endswith("AcquireLease") else ids
            request = row(own).SerializeToString()
            answer, begin = "", time.perf_counter()
            try:
                send(request, timeout=SECONDS)
                took = time.perf_counter() - begin
            except grpc.RpcError as error:
                took = time.perf_counter() - begin
                answer = reason_of(error)
            assert answer == expected, call
            return took

        return asked


def _ids() -> Ids:
    return Ids(f"acme/{secrets.token_hex(8)}", f"ali-{secrets.token_hex(8)}", *(secrets.token_hex(16) for _ in "123"))


def _held_by_its_owner(shelf: warmshelf.Shelf, sessions: Any, held: ExitStack, ids: Ids, model: Path) -> Ids:
    """Register, load and lease an artifact, with an alias; return its IDs."""
    shelf.register(ids.artifact_id, f"file://{model}")
    shelf.set_alias(ids.alias, ids.artifact_id)
    session = sessions.OpenSession(lease_pb2.OpenSessionRequest(holder="the holder"), timeout=3600)
    held.callback(session.cancel)
    session_id = next(session).session_id
    request = lease_pb2.AcquireLeaseRequest(
        session_id=session_id, artifact_id=ids.artifact_id, lease_id=secrets.token_hex(16)
    )
    lease_id = sessions.AcquireLease(request, timeout=SECONDS).lease.lease_id
    return replace(ids, session_id=session_id, lease_id=lease_id)


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbours]:
    with estate_in(tmp_path_factory.mktemp("timing")) as estate, ExitStack() as held:
        estate.start()
        model = estate.daemon.models / "m.safetensors"
        write_model(model, 1, 64 << 10)
        red = held.enter_context(opened(estate.channel("red")))
        shelf = held.enter_context(estate.connect("red"))
        sessions = lease_pb2_grpc.LeaseServiceStub(red)
        theirs = [_held_by_its_owner(shelf, sessions, held, _ids(), model) for _ in range(KINDS)]
        blue = held.enter_context(opened(estate.channel("blue")))
        session = lease_pb2_grpc.LeaseServiceStub(blue).OpenSession(lease_pb2.OpenSessionRequest(), timeout=3600)
        held.callback(session.cancel)
        yield Neighbours(blue, next(session).session_id, theirs, [_ids() for _ in range(KINDS)])


def in_pairs(count: int, first: Callable[[], float], second: Callable[[], float]) -> list[tuple[float, float]]:
    """Take the times of both, one right after the other; a coin decides which goes first."""
    pairs = []
    for _ in range(count):
        if secrets.randbits(1):
            took = first()
            pairs.append((took, second()))
        else:
            took = second()
            pairs.append((first(), took))
    return pairs


def _compared(neighbours: Neighbours, call: str, count: int) -> Verdict:
    ask = neighbours.ask(call)
    for ids in neighbours.theirs + neighbours.nobodys:
        ask(ids)  # what only the first call costs
    verdict = compare(
        in_pairs(
            count,
            lambda: ask(secrets.choice(neighbours.theirs)),
            lambda: ask(secrets.choice(neighbours.nobodys)),
        )
    )
    print(f"{call}: what another has takes longer with {verdict.first_slower:.3f}, by chance {verdict.chance:.1e}")
    return verdict


@pytest.mark.parametrize("call", list(ASKED)[:3])
def test_what_another_has_is_not_told_by_the_time_of_its_refusal(neighbours: Neighbours, call: str) -> None:
    assert not _compared(neighbours, call, SHORT).differs


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", ASKED)
def test_not_in_thousands_of_calls_either(neighbours: Neighbours, call: str) -> None:
    assert not _compared(neighbours, call, LONG).differs


def _contents(estate: Estate, count: int) -> list[tuple[Path, Path]]:
    """Write pairs of models; the first of each is loaded by one tenant, which one a coin decides."""
    pairs = []
    with estate.connect("red") as red:
        for number in range(count):
            found = [estate.daemon.models / f"{number}-{side}.safetensors" for side in "ab"]
            for side, path in enumerate(found):
                write_model(path, 2 * number + side, 64 << 10)
            secrets.SystemRandom().shuffle(found)
            red.register(f"m{number}", f"file://{found[0]}")
            red.acquire(f"m{number}", timeout=SECONDS).release()
            pairs.append((found[0], found[1]))
    return pairs


@pytest.mark.parametrize("count", [CONTENTS_SHORT, pytest.param(CONTENTS_LONG, marks=pytest.mark.nightly)])
def test_content_that_another_has_takes_as_long_to_register_and_to_load(estate: Estate, count: int) -> None:
    estate.start()
    pairs = _contents(estate, count)
    registering, loading = [], []
    with estate.connect("blue") as blue:

        def load(path: Path) -> tuple[float, float]:
            begin = time.perf_counter()
            blue.register(path.name, f"file://{path}")
            middle = time.perf_counter()
            blue.acquire(path.name, timeout=SECONDS).release()
            end = time.perf_counter()
            blue.remove(path.name)
            return middle - begin, end - middle

        for theirs, nobodys in pairs:
            ((one, other),) = in_pairs(1, lambda theirs=theirs: load(theirs), lambda nobodys=nobodys: load(nobodys))
            registering.append((one[0], other[0]))
            loading.append((one[1], other[1]))
    for what, times in (("registering", registering), ("loading", loading)):
        verdict = compare(times)
        print(f"{what} takes longer with {verdict.first_slower:.3f}, by chance {verdict.chance:.1e}")
        assert not verdict.differs, what


@pytest.mark.parametrize(("delay", "differs"), [(0.0, False), (0.1, False), (0.5, True), (-0.5, True)])
def test_a_difference_is_told_and_a_busy_machine_is_none(delay: float, differs: bool) -> None:
    """Times with long tails, which drift together as on a busy machine; delays in parts of the spread."""
    dice = random.Random(1)
    pairs = []
    for number in range(LONG):
        level = 10 + 5 * (number // 500 % 2)
        pairs.append((level + delay + dice.lognormvariate(0, 1), level + dice.lognormvariate(0, 1)))
    verdict = compare(pairs)
    assert verdict.differs is differs
    assert (verdict.first_slower > 0.5) is (delay > 0) or not differs


def test_equal_times_are_even() -> None:
    assert compare([(1.0, 1.0)] * 100) == Verdict(0.5, 1.0)
    assert compare([(2.0, 1.0)] * 100).first_slower == 1.0
    assert compare([(1.0, 2.0)] * 100).first_slower == 0.0

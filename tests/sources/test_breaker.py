"""Servers that fail again and again are asked rarely, and those who ask are told at once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import warmshelf
from kit.models import filled, safetensors_bytes
from kit.processes import Daemon, eventually
from kit.web import Web, serving
from kit.web_faults import Status
from warmshelf import errors
from warmshelfd.sources.breaker import PLACES_MAX, URIS_MAX, BreakerLimits, Breakers

PLACE = "https://models.example"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breakers(clock: Clock) -> Breakers:
    return Breakers(BreakerLimits(failures_max=3, pause_seconds=5.0), clock)


def refused(breakers: Breakers, uri: str, place: str = PLACE) -> errors.SourceUnavailable:
    with pytest.raises(errors.SourceUnavailable) as caught:
        breakers.check(place, uri)
    return caught.value


def fail(breakers: Breakers, *uris: str) -> None:
    for uri in uris:
        breakers.check(PLACE, uri)
        breakers.failed(PLACE, uri)


def test_after_failures_in_a_row_the_place_pauses_and_says_its_numbers(breakers: Breakers, clock: Clock) -> None:
    """S5."""
    fail(breakers, "a", "a", "a")
    clock.now += 1
    error = refused(breakers, "a")
    assert error.retryable
    assert error.details == {"server": PLACE, "failure_count": 3, "retry_after_seconds": 4.0}
    assert "3 times in a row" in error.message
    breakers.check("https://another.example", "b")


def test_one_answer_in_between_begins_the_count_anew(breakers: Breakers) -> None:
    fail(breakers, "a", "a")
    breakers.answered(PLACE)
    fail(breakers, "a", "a")
    breakers.check(PLACE, "a")


def test_after_the_pause_one_tries_and_the_others_wait_for_what_comes_of_it(breakers: Breakers, clock: Clock) -> None:
    fail(breakers, "a", "b", "c")
    clock.now += 5
    breakers.check(PLACE, "a")
    refused(breakers, "b")
    breakers.failed(PLACE, "a")
    assert refused(breakers, "b").details["failure_count"] == 4
    clock.now += 5
    breakers.check(PLACE, "b")
    breakers.answered(PLACE)
    for uri in "abc":
        breakers.check(PLACE, uri)


def test_a_source_that_is_broken_alone_does_not_keep_others_of_its_server_away(breakers: Breakers) -> None:
    fail(breakers, "broken", "broken", "broken")
    breakers.check(PLACE, "sound")
    refused(breakers, "other")  # one at a time
    breakers.answered(PLACE)
    breakers.check(PLACE, "other")


def test_who_tries_and_never_says_how_it_went_is_forgotten(breakers: Breakers, clock: Clock) -> None:
    fail(breakers, "a", "b", "c")
    clock.now += 5
    breakers.check(PLACE, "a")
    clock.now += 5
    breakers.check(PLACE, "b")


def test_what_is_remembered_is_bounded(breakers: Breakers, clock: Clock) -> None:
    for number in range(PLACES_MAX + 10):
        breakers.failed(f"https://{number}.example", "a")
    assert len(breakers._places) == PLACES_MAX
    for number in range(URIS_MAX + 10):
        breakers.failed(PLACE, f"{number}")
    assert len(breakers._places[PLACE].uris) == URIS_MAX
    refused(breakers, "one that has not failed")
    clock.now += 5
    breakers.check(PLACE, "one that has not failed")


# --- through a daemon -------------------------------------------------------


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as it:
        yield it


def test_a_server_that_fails_is_spared_by_a_daemon_and_used_again_when_it_answers(daemon: Daemon, web: Web) -> None:
    for name in "ab":
        web.files[f"/{name}/model.safetensors"] = safetensors_bytes(filled(1))
    config = daemon.root / "daemon.toml"
    config.write_text(
        "source_attempts_max = 1\nsource_failures_max = 2\nsource_pause_seconds = 2\n"
        f'[[source]]\nprefix = "{web.url}"\nallow_private = true\n'
    )
    daemon.start("--budget", "64MiB", "--config", str(config), "--allow-source", web.url)
    uri = f"{web.url}/a/model.safetensors"
    with daemon.connect() as shelf:
        web.faults.append(Status(status=503))
        for _ in range(2):
            with pytest.raises(errors.SourceUnavailable, match="503"):
                shelf.register("a", uri)
        asked = len(web.asked)
        began = time.monotonic()
        with pytest.raises(errors.SourceUnavailable, match="2 times in a row") as caught:
            shelf.register("a", uri)
        assert caught.value.details["retry_after_seconds"] <= 2
        assert time.monotonic() - began < 1.5
        assert len(web.asked) == asked
        web.faults.clear()
        eventually(lambda: registers(shelf, uri), "it is asked again")
        shelf.acquire("a", timeout=10).release()


def registers(shelf: warmshelf.Shelf, uri: str) -> bool:
    try:
        shelf.register("a", uri)
    except errors.SourceUnavailable:
        return False
    return True


def test_missing_and_broken_files_are_answers(daemon: Daemon, web: Web) -> None:
    web.files["/broken/model.safetensors"] = b"\xff" * 64
    web.files["/a/model.safetensors"] = safetensors_bytes(filled(1))
    config = daemon.root / "daemon.toml"
    config.write_text(f'source_failures_max = 1\n[[source]]\nprefix = "{web.url}"\nallow_private = true\n')
    daemon.start("--budget", "64MiB", "--config", str(config), "--allow-source", web.url)
    with daemon.connect() as shelf:
        for _ in range(3):
            with pytest.raises(errors.SourceNotFound):
                shelf.register("n", f"{web.url}/nothing/model.safetensors")
            with pytest.raises(errors.MalformedArtifact):
                shelf.register("b", f"{web.url}/broken/model.safetensors")
        shelf.register("a", f"{web.url}/a/model.safetensors")

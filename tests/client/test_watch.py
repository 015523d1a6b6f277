"""A watch goes on where it was, or starts over and says so; it never leaves a gap."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import pytest

import warmshelf
from kit.standin import StandIn
from warmshelf import Artifact, ArtifactSpec, Change, ChangeKind, Source, errors
from warmshelf.watch import Watch

Step = Change | errors.WarmshelfError

BROKEN = errors.DaemonUnreachable("the connection broke")
COMPACTED = errors.SequenceCompacted("those changes are gone")
OVER = Change(0, ChangeKind.STARTED_OVER)


def changed(sequence: int, artifact_id: str = "a") -> Change:
    return Change(sequence, ChangeKind.CHANGED, Artifact(artifact_id, ArtifactSpec(Source("x"))), artifact_id)


def complete(sequence: int) -> Change:
    return Change(sequence, ChangeKind.COMPLETE)


class Script:
    """Feeds that bring what a test says, one after the other; when one has no more, it is broken."""

    def __init__(self, *feeds: Sequence[Step]) -> None:
        self.feeds = list(feeds)
        self.asked: list[int] = []

    def __call__(self, after: int) -> ScriptedFeed:
        self.asked.append(after)
        if not self.feeds:
            raise errors.DaemonUnreachable("the daemon stays away")
        return ScriptedFeed(list(self.feeds.pop(0)))


class ScriptedFeed:
    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def receive(self) -> Change:
        step = self.steps.pop(0) if self.steps else BROKEN
        if isinstance(step, errors.WarmshelfError):
            raise step
        return step

    def cancel(self) -> None:
        self.steps = []


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmshelf.watch.PAUSE_SECONDS", (0.0, 0.0))


def told(script: Script, after: int = 0) -> list[Change]:
    """Return all that a watch tells until the daemon stays away."""
    watch = Watch(script, after)
    seen: list[Change] = []
    with pytest.raises(errors.DaemonUnreachable, match="stays away"):
        seen.extend(iter(lambda: next(watch), None))
    return seen


def test_a_broken_stream_is_gone_on_with_after_the_last_change() -> None:
    script = Script([changed(0), complete(5), changed(6)], [changed(7)], [], [changed(8)])
    assert told(script) == [changed(0), complete(5), changed(6), changed(7), changed(8)]
    assert script.asked == [0, 6, 7, 7, 8]


@pytest.mark.parametrize(
    "end",
    [BROKEN, errors.Cancelled("by a stopping daemon"), errors.Draining("it stops")],
    ids=lambda error: str(type(error).__name__),
)
def test_however_a_daemon_ends_a_stream_it_is_gone_on_with(end: errors.WarmshelfError) -> None:
    script = Script([complete(5), end], [changed(6)])
    assert told(script) == [complete(5), changed(6)]


def test_where_changes_were_missed_it_starts_over_and_says_so_first() -> None:
    script = Script([changed(0), complete(5)], [COMPACTED], [changed(0, "b"), complete(9)], [changed(10)])
    assert told(script) == [changed(0), complete(5), OVER, changed(0, "b"), complete(9), changed(10)]
    assert script.asked == [0, 5, 0, 9, 10]


def test_a_snapshot_that_broke_is_told_anew() -> None:
    script = Script([changed(0, "a")], [changed(0, "a"), changed(0, "b"), complete(5)])
    assert told(script) == [changed(0, "a"), OVER, changed(0, "a"), changed(0, "b"), complete(5)]


def test_nothing_is_cleared_before_there_is_something_in_its_place() -> None:
    script = Script([complete(5)], [COMPACTED], [], [], [complete(9)])
    assert told(script) == [complete(5), OVER, complete(9)]


def test_a_watch_that_has_told_nothing_starts_over_without_a_word() -> None:
    assert told(Script([], [complete(5)])) == [complete(5)]


def test_a_number_to_go_on_after_may_be_gone_already() -> None:
    assert told(Script([COMPACTED], [complete(9)]), after=3) == [OVER, complete(9)]
    assert told(Script([changed(4)]), after=3) == [changed(4)]


def test_a_snapshot_that_is_said_to_be_gone_is_the_callers_to_see() -> None:
    with pytest.raises(errors.SequenceCompacted):
        next(Watch(Script([COMPACTED])))


@pytest.mark.parametrize("error", [errors.Internal("a bug"), errors.NotImplementedHere("old")])
def test_any_other_error_is_the_callers_to_see(error: errors.WarmshelfError) -> None:
    with pytest.raises(type(error)):
        next(Watch(Script([error])))


def test_what_is_closed_opens_nothing() -> None:
    script = Script([complete(1)])
    with Watch(script) as watch:
        pass
    assert list(watch) == []
    assert script.asked == []


def test_closing_while_a_feed_opens_cancels_it() -> None:
    script = Script([changed(0), complete(5)])

    def open_feed(after: int) -> ScriptedFeed:
        watch.close()
        return script(after)

    watch = Watch(open_feed)
    assert list(watch) == []


def test_a_pause_before_the_next_try_ends_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmshelf.watch.PAUSE_SECONDS", (60.0, 60.0))
    script = Script([complete(5)], [complete(6)])
    watch = Watch(script)
    assert next(watch) == complete(5)
    thread = threading.Thread(target=lambda: list(watch))
    thread.start()
    watch.close()
    thread.join(10)
    assert not thread.is_alive()
    assert script.asked == [0]


# --- over gRPC ---


def test_a_restarted_daemon_is_found_again(stand_in: StandIn) -> None:
    """B53."""
    stand_in.changes = [2, 3]
    with warmshelf.connect(stand_in.address, timeout=20) as shelf, shelf.watch() as watch:
        assert [next(watch).sequence for _ in range(3)] == [1, 2, 3]
        stand_in.stop()
        stand_in.changes = [2, 3, 4]
        timer = threading.Timer(0.3, stand_in.start)
        timer.start()
        assert next(watch).sequence == 4
        timer.join()


def test_a_stream_that_a_daemon_ends_well_is_gone_on_with(stand_in: StandIn) -> None:
    stand_in.changes = [2]
    stand_in.ends_watches = True
    with warmshelf.connect(stand_in.address, timeout=20) as shelf, shelf.watch() as watch:
        assert [next(watch).sequence for _ in range(2)] == [1, 2]
        stand_in.changes = [2, 3]
        assert next(watch).sequence == 3


def test_a_daemon_that_stays_away_is_an_error_in_time(stand_in: StandIn) -> None:
    with warmshelf.connect(stand_in.address, timeout=1) as shelf, shelf.watch() as watch:
        assert next(watch).kind is ChangeKind.COMPLETE
        stand_in.stop()
        with pytest.raises(errors.DaemonUnreachable):
            next(watch)


def test_a_watch_that_is_forgotten_ends_its_call(stand_in: StandIn) -> None:
    with warmshelf.connect(stand_in.address, timeout=20) as shelf:
        watch = shelf.watch()
        assert next(watch).kind is ChangeKind.COMPLETE
        del watch
        gc.collect()  # a traceback of an earlier test may still lead to it
        assert stand_in.watch_ended.wait(30)

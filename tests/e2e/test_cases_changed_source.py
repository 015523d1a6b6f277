"""A source that changes: touched, rewritten, replaced, before, during and after a load; and what digests decide."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.models import Tensor, content_digest, filled, pattern, safetensors_bytes
from kit.processes import Daemon, eventually
from warmshelf import errors

ONES, TWOS = filled(1), filled(2)
WRONG = "0" * 64


@pytest.fixture
def source(models: Path) -> Path:
    path = models / "a.safetensors"
    path.write_bytes(safetensors_bytes(ONES))
    return path


def load(shelf: warmshelf.Shelf, artifact_id: str) -> warmshelf.Artifact:
    """Load to the end and return the artifact."""
    *_, last = shelf.load(artifact_id, timeout=20)
    assert last.artifact is not None
    return last.artifact


def load_and_evict(shelf: warmshelf.Shelf, artifact_id: str) -> None:
    """Pin the digest of an artifact and give its memory back."""
    load(shelf, artifact_id)
    eventually(lambda: shelf.get(artifact_id).digest != "", "the digest is known")
    shelf.evict(artifact_id)


def rewrite(path: Path) -> None:
    path.write_bytes(safetensors_bytes(TWOS))


def replace_by_rename(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(safetensors_bytes(TWOS))
    other.rename(path)


def rewrite_and_hide_the_time(path: Path) -> None:
    before = path.stat()
    path.write_bytes(safetensors_bytes(TWOS))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def lead_the_link_elsewhere(path: Path) -> None:
    other = path.with_name("second.safetensors")
    other.write_bytes(safetensors_bytes(TWOS))
    path.unlink()
    path.symlink_to(other)


CHANGES = [rewrite, replace_by_rename, rewrite_and_hide_the_time, lead_the_link_elsewhere]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", ["register", "load", "acquire"])
def test_a_changed_source_of_an_evicted_artifact_is_refused_until_it_is_replaced(
    shared: Daemon, source: Path, change: Callable[[Path], None], call: str
) -> None:
    """B01: noticed at every load and every registration."""
    with shared.connect() as shelf:
        shelf.register("a", source)
        load_and_evict(shelf, "a")
        change(source)
        calls: dict[str, Callable[[], object]] = {
            "register": lambda: shelf.register("a", source),
            "load": lambda: load(shelf, "a"),
            "acquire": lambda: shelf.acquire("a", timeout=20),
        }
        for _ in range(2):
            with pytest.raises(errors.SourceChanged):
                calls[call]()
            assert shared.segments() == []
        assert shelf.register("a", source, replace=True).generation == 2
        with shelf.acquire("a", timeout=20) as lease:
            assert lease["w"] == TWOS["w"][2]
            assert lease.generation == 2


@pytest.mark.parametrize("change", CHANGES)
def test_a_load_of_a_resident_artifact_notices_that_its_source_changed_and_an_acquire_does_not_look(
    shared: Daemon, source: Path, change: Callable[[Path], None]
) -> None:
    with shared.connect() as shelf:
        shelf.register("a", source)
        load(shelf, "a")
        eventually(lambda: shelf.get("a").digest != "", "the digest is known")
        change(source)
        with pytest.raises(errors.SourceChanged):
            load(shelf, "a")
        with shelf.acquire("a", timeout=20) as lease:
            assert lease["w"] == ONES["w"][2]


def test_a_source_that_changed_before_its_first_load_is_refused(shared: Daemon, source: Path) -> None:
    """Registering pins the fingerprint; no digest is known that could tell whether the bytes are the same."""
    with shared.connect() as shelf:
        shelf.register("a", source)
        rewrite(source)
        for _ in range(2):
            with pytest.raises(errors.SourceChanged):
                shelf.acquire("a", timeout=20)
        shelf.register("a", source, replace=True)
        with shelf.acquire("a", timeout=20) as lease:
            assert (lease["w"], lease.generation) == (TWOS["w"][2], 1)


def test_a_source_that_vanishes_and_comes_back_as_it_was_loads(shared: Daemon, source: Path) -> None:
    """Never loaded before: only how it looks tells that it is the same. Moved by itself it looks otherwise (ctime)."""
    with shared.connect() as shelf:
        shelf.register("a", source)
        away = source.parent.with_name("away")
        source.parent.rename(away)
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("a", timeout=20)
        away.rename(source.parent)
        source.rename(source.with_name("moved"))
        source.with_name("moved").rename(source)
        with pytest.raises(errors.SourceChanged, match="replace it, or register it with its digest"):
            shelf.acquire("a", timeout=20)
        shelf.register("a", source, replace=True)
        source.parent.rename(away)
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("a", timeout=20)
        away.rename(source.parent)
        shelf.acquire("a", timeout=20).release()


def test_a_touched_source_keeps_its_generation(shared: Daemon, source: Path) -> None:
    """The same bytes with another time, or in another file: the digest decides."""
    with shared.connect() as shelf:
        shelf.register("a", source)
        load_and_evict(shelf, "a")
        digest = shelf.get("a").digest
        os.utime(source)
        load_and_evict(shelf, "a")
        source.rename(source.with_suffix(".old"))
        source.write_bytes(safetensors_bytes(ONES))
        shelf.register("a", source)
        with shelf.acquire("a", timeout=20) as lease:
            assert (lease["w"], lease.generation) == (ONES["w"][2], 1)
        os.utime(source)
        assert load(shelf, "a").digest == digest == content_digest(ONES)


@pytest.mark.parametrize("change", CHANGES)
def test_a_followed_source_becomes_a_new_generation_at_its_next_load(
    shared: Daemon, source: Path, change: Callable[[Path], None]
) -> None:
    with shared.connect() as shelf:
        shelf.register("a", source, follow=True)
        load_and_evict(shelf, "a")
        os.utime(source)
        with shelf.acquire("a", timeout=20) as lease:
            assert (lease["w"], lease.generation) == (ONES["w"][2], 1)
        shelf.evict("a")
        change(source)
        with shelf.acquire("a", timeout=20) as lease:
            assert (lease["w"], lease.generation) == (TWOS["w"][2], 2)


def test_registering_a_followed_id_again_takes_its_new_bytes_while_old_leases_keep_the_old(
    shared: Daemon, source: Path
) -> None:
    with shared.connect() as shelf:
        shelf.register("a", source, follow=True)
        old = shelf.acquire("a", timeout=20)
        rewrite(source)
        assert shelf.register("a", source).generation == 2
        with shelf.acquire("a", timeout=20) as lease:
            assert (lease["w"], lease.generation) == (TWOS["w"][2], 2)
        assert (old["w"], old.generation) == (ONES["w"][2], 1)


def test_a_touched_followed_source_keeps_its_generation_however_it_is_looked_at(shared: Daemon, source: Path) -> None:
    with shared.connect() as shelf:
        shelf.register("a", source, follow=True)
        load(shelf, "a")
        eventually(lambda: shelf.get("a").digest != "", "the digest is known")
        segments = shared.segments()
        os.utime(source)
        assert load(shelf, "a").generation == 1
        assert shelf.register("a", source).generation == 1
        assert shared.segments() == segments


def test_loading_a_resident_followed_artifact_takes_its_new_bytes(shared: Daemon, source: Path) -> None:
    with shared.connect() as shelf:
        shelf.register("a", source, follow=True)
        load(shelf, "a")
        rewrite(source)
        assert load(shelf, "a").generation == 2
        with shelf.acquire("a", timeout=20) as lease:
            assert (lease["w"], lease.generation) == (TWOS["w"][2], 2)


def test_a_followed_source_is_a_new_generation_also_if_the_old_digest_was_never_known(
    shared: Daemon, models: Path
) -> None:
    """Two contents never share a generation, whatever the daemon had no time to learn."""
    source = models / "big.safetensors"
    source.write_bytes(safetensors_bytes({"w": ("U8", (96 << 20,), pattern(1, 96 << 20))}))
    with shared.connect() as shelf:
        shelf.register("a", source, follow=True)
        with shelf.acquire("a", timeout=20) as lease:
            assert lease.generation == 1
        shelf.evict("a")  # hashing 96 MiB takes longer than to get here, and is stopped
        source.write_bytes(safetensors_bytes(TWOS))
        with shelf.acquire("a", timeout=20) as lease:
            assert (lease["w"], lease.generation) == (TWOS["w"][2], 2)


@pytest.mark.parametrize("change", [rewrite, replace_by_rename, rewrite_and_hide_the_time])
def test_a_source_rewritten_during_its_load_fails_it_and_leaves_nothing(
    slow: Daemon, models: Path, change: Callable[[Path], None]
) -> None:
    """Bytes of before and after are never mixed: each part is read late enough to see the other file."""
    source = models / "a.safetensors"
    source.write_bytes(safetensors_bytes({"w": ("U8", (40 << 20,), pattern(1, 40 << 20))}))
    with slow.connect() as shelf:
        shelf.register("a", source)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(shelf.acquire, "a", timeout=20)
            eventually(lambda: shelf.get("a").state is warmshelf.ArtifactState.LOADING, "the load has begun")
            change(source)
            with pytest.raises(errors.SourceChangedDuringLoad):
                waiting.result()
        assert (slow.segments(), slow.leftovers()) == ([], [])
        failure = shelf.get("a").failure
        assert failure is not None
        assert failure.reason == "SOURCE_CHANGED_DURING_LOAD"
        shelf.register("a", source, replace=True)
        with shelf.acquire("a", timeout=20) as lease:
            assert lease["w"] == TWOS["w"][2]


# --- expectations ------------------------------------------------------------


def test_the_digest_is_the_documented_one_and_an_expectation_is_waited_for(shared: Daemon, models: Path) -> None:
    tensors: dict[str, Tensor] = {
        "b": ("BF16", (2, 3), pattern(1, 12)),
        "a": ("F32", (), pattern(2, 4)),
        "\u00e4": ("F8_E4M3", (0, 7), b""),
        "big": ("U8", (24 << 20,), pattern(3, 24 << 20)),
    }
    (models / "m").mkdir()
    (models / "m" / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    (models / "m" / "config.json").write_text('{"a": 1}')
    digest = content_digest(tensors, b'{"a": 1}')
    with shared.connect() as shelf:
        shelf.register("m", models / "m")
        with shelf.acquire("m", timeout=20, expected_digest=digest) as lease:
            assert lease.artifact.digest == digest
        with pytest.raises(errors.DigestMismatch) as caught:
            shelf.acquire("m", timeout=20, expected_digest=f"blake3:{WRONG}")
        assert caught.value.details["actual"] == digest
        assert shelf.leases() == []


def sha256_of(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_the_sha256_of_the_source_file_can_be_expected_by_whoever_acquires(shared: Daemon, source: Path) -> None:
    right = sha256_of(source)
    with shared.connect() as shelf:
        shelf.register("one", source)
        for _ in range(2):  # cold, and resident
            with shelf.acquire("one", timeout=20, expected_digest=right) as lease:
                assert lease["w"] == ONES["w"][2]
        with pytest.raises(errors.DigestMismatch) as caught:
            shelf.acquire("one", timeout=20, expected_digest=f"sha256:{WRONG}")
        assert caught.value.details["actual"] == right
        os.utime(source, ns=(1, 1))
        with pytest.raises(errors.SourceChanged):  # only the source tells, and it may be another now
            shelf.acquire("one", timeout=20, expected_digest=right)
        assert shelf.leases() == []


@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
def test_a_digest_given_at_registration_is_checked_before_anything_is_served(
    shared: Daemon, source: Path, algorithm: str
) -> None:
    right = content_digest(ONES) if algorithm == "blake3" else sha256_of(source)
    with shared.connect() as shelf:
        shelf.register("right", source, digest=right)
        with shelf.acquire("right", timeout=20) as lease:
            assert lease["w"] == ONES["w"][2]
            assert lease.artifact.digest == content_digest(ONES)
        shelf.register("wrong", source, digest=f"{algorithm}:{WRONG}")
        before = shared.segments()
        with pytest.raises(errors.DigestMismatch) as caught:
            shelf.acquire("wrong", timeout=20)
        assert caught.value.details["actual"] == right
        assert shared.segments() == before
        assert shelf.get("wrong").state is warmshelf.ArtifactState.FAILED


def test_a_right_digest_lets_a_changed_time_pass_before_the_first_load(shared: Daemon, source: Path) -> None:
    with shared.connect() as shelf:
        shelf.register("a", source, digest=content_digest(ONES))
        os.utime(source)
        with shelf.acquire("a", timeout=20) as lease:
            assert lease.generation == 1
        shelf.evict("a")
        rewrite(source)
        with pytest.raises((errors.SourceChanged, errors.DigestMismatch)):
            shelf.acquire("a", timeout=20)


def test_many_who_expect_different_digests_each_get_their_own_answer(shared: Daemon, models: Path) -> None:
    source = models / "big.safetensors"
    tensors: dict[str, Tensor] = {"w": ("U8", (32 << 20,), pattern(1, 32 << 20))}
    source.write_bytes(safetensors_bytes(tensors))
    expected = [content_digest(tensors), f"blake3:{WRONG}"] * 4
    together = threading.Barrier(len(expected))
    with shared.connect() as shelf, ThreadPoolExecutor(len(expected)) as pool:
        shelf.register("a", source)

        def outcome(digest: str) -> str:
            together.wait()
            try:
                shelf.acquire("a", timeout=20, expected_digest=digest).release()
            except errors.DigestMismatch:
                return "refused"
            return "leased"

        assert list(pool.map(outcome, expected)) == ["leased", "refused"] * 4

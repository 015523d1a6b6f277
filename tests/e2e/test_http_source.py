"""Weights on a web server, through a real daemon: register, load, compare, evict, and every fault on the way."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmshelf
from kit import web_faults as faults
from kit.models import Tensor, content_digest, pattern, safetensors_bytes
from kit.processes import Daemon, eventually, read_all
from kit.web import Web, serving
from warmshelf import errors

TENSORS: dict[str, Tensor] = {f"layer.{i}.weight": ("U8", (1 << 20,), pattern(i, 1 << 20)) for i in range(3)}
MODEL = safetensors_bytes(TENSORS)
WANTED = {name: data for name, (_, _, data) in TENSORS.items()}
SMALL = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "merges.txt": b"a b"}

LIMITS = """
source_connect_seconds = 0.5
source_answer_seconds = 0.5
source_stall_seconds = 0.4
source_bytes_per_second_min = "8MiB"
source_retry_seconds = 2
source_attempts_max = 3
"""

LOOKS = 4
"""Requests for a file before its bytes are read: two when it is registered, two when it is loaded."""


@pytest.fixture(scope="module")
def server() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.fixture(scope="module")
def reader(server: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that may read from the server, and has little patience."""
    root = tmp_path_factory.mktemp("http")
    config = root / "daemon.toml"
    config.write_text(f'{LIMITS}\n[[source]]\nprefix = "{server.url}/m"\nallow_private = true\n')
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        daemon = Daemon(root, Path(arena), root / "models")
        daemon.models.mkdir()
        yield daemon.start("--config", str(config), "--budget", "64MiB", "--allow-source", f"{server.url}/m")
        assert daemon.kill(15) == 0
        daemon.check()


@pytest.fixture
def web(server: Web, reader: Daemon) -> Iterator[Web]:
    """The server, with nothing wrong yet; afterwards nothing of a test is left in the daemon."""
    server.faults.clear()
    server.files.clear()
    server.asked.clear()
    yield server
    server.faults.clear()
    with reader.connect() as shelf:
        for artifact in shelf.list():
            shelf.remove(artifact.artifact_id)
    eventually(lambda: reader.leftovers() == [] and reader.arena_bytes() == 0, "every byte is given back")
    reader.check()


@pytest.fixture
def shelf(reader: Daemon) -> Iterator[warmshelf.Shelf]:
    with reader.connect() as shelf:
        yield shelf


def one(web: Web) -> str:
    """Serve one file and return its URL."""
    return web.put("/m/one", {"model.safetensors": MODEL}) + "model.safetensors"


def acquired(shelf: warmshelf.Shelf, artifact_id: str) -> dict[str, bytes]:
    with shelf.acquire(artifact_id, timeout=20) as lease:
        return read_all(lease)


def test_one_file_is_registered_loaded_evicted_and_loaded_again(web: Web, shelf: warmshelf.Shelf) -> None:
    url = web.put("/m/one", {"weights.safetensors": MODEL}) + "weights.safetensors"
    artifact = shelf.register("a", url)
    assert artifact.spec.source.uri == url
    assert acquired(shelf, "a") == WANTED
    eventually(lambda: shelf.get("a").digest != "", "the digest is known")
    assert shelf.get("a").digest == content_digest(TENSORS)
    shelf.evict("a")
    assert acquired(shelf, "a") == WANTED
    web.faults.append(faults.Silent("*"))  # what is resident needs no server
    assert acquired(shelf, "a") == WANTED


def test_a_directory_needs_no_index_for_one_file(web: Web, shelf: warmshelf.Shelf) -> None:
    shelf.register("a", web.put("/m/dir", {"model.safetensors": MODEL, "config.json": b"{}"}))
    assert acquired(shelf, "a") == WANTED
    with pytest.raises(errors.SourceNotFound, match="none of the files"):
        shelf.register("b", f"{web.url}/m/nothing")


def test_a_directory_is_read_through_its_index_with_its_config_and_tokenizer(web: Web, shelf: warmshelf.Shelf) -> None:
    names = sorted(TENSORS)
    shards = {f"model-{i + 1:05}-of-00003.safetensors": safetensors_bytes({n: TENSORS[n]}) for i, n in enumerate(names)}
    index = json.dumps({"weight_map": dict(zip(names, shards, strict=True))}).encode()
    more = {"model.safetensors": b"not meant", "extra.safetensors": b"nor this", "model.safetensors.index.json": index}
    url = web.put("/m/llama 3", {**shards, **SMALL, **more}).replace(" ", "%20")
    shelf.register("a", url.rstrip("/"))
    assert shelf.get("a").spec.source.uri == url
    assert shelf.get("a").inspection.file_names == tuple(shards)
    with shelf.acquire("a", timeout=20) as lease:
        assert read_all(lease) == WANTED
        assert lease.config_json == SMALL["config.json"]
    assert web.requests_for("extra.safetensors") == []


def test_an_index_that_names_a_file_that_is_not_there_is_refused_by_its_name(web: Web, shelf: warmshelf.Shelf) -> None:
    """B27, over HTTP."""
    index = json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}).encode()
    url = web.put("/m/gap", {"model.safetensors.index.json": index})
    with pytest.raises(errors.SourceNotFound, match="model-00001-of-00001"):
        shelf.register("a", url)
    assert shelf.list() == []


def test_an_index_that_names_files_elsewhere_is_refused_before_they_are_asked_for(
    web: Web, shelf: warmshelf.Shelf
) -> None:
    for shard in ("../secret.safetensors", "/secret.safetensors", "..", "%2e%2e"):
        index = json.dumps({"weight_map": {"w": shard}}).encode()
        web.asked.clear()
        with pytest.raises((errors.MalformedArtifact, errors.InvalidSpec)):
            shelf.register("a", web.put("/m/escape", {"model.safetensors.index.json": index}))
        assert not any("secret" in asked.path or ".." in asked.path for asked in web.asked)


def test_nothing_is_told_apart_outside_the_allowed_prefixes(web: Web, shelf: warmshelf.Shelf) -> None:
    there = web.put("/other", {"model.safetensors": MODEL})
    texts = set()
    for url in (there, f"{web.url}/gone/", f"{web.url}/m2/"):
        with pytest.raises(errors.SourceNotAllowed) as refused:
            shelf.register("a", url)
        texts.add(refused.value.message.replace(url, "URL"))
    assert len(texts) == 1
    assert web.asked == []


# --- faults -----------------------------------------------------------------

RECOVERED = [
    faults.Break(after=LOOKS, times=1),
    faults.Break(after=1, times=1),
    faults.Stall(after=LOOKS, times=1),
    faults.Status(after=LOOKS, times=2, status=503),
    faults.Status(after=0, times=1, status=429, headers={"Retry-After": "0"}),
    faults.Status(after=LOOKS, times=1, status=503, headers={"Retry-After": "1"}),
    faults.Slow(seconds=0.1),
]


@pytest.mark.parametrize("fault", RECOVERED, ids=lambda fault: f"{type(fault).__name__}-{fault.after}")
def test_what_fails_for_the_moment_is_read_again_and_whole(
    web: Web, shelf: warmshelf.Shelf, fault: faults.FaultOf
) -> None:
    """B29, S5 to S8."""
    fault.seen = 0
    url = one(web)
    web.faults.append(fault)
    shelf.register("a", url)
    assert acquired(shelf, "a") == WANTED
    assert len(web.requests_for("model.safetensors")) < 15


def test_a_broken_connection_is_resumed_behind_what_had_come(web: Web, shelf: warmshelf.Shelf) -> None:
    url = one(web)
    web.faults.append(faults.Break(after=LOOKS, times=1))
    shelf.register("a", url)
    assert acquired(shelf, "a") == WANTED
    ranges = [asked.range for asked in web.requests_for("model.safetensors")]
    broken, resumed = ranges[LOOKS], ranges[LOOKS + 1]
    assert broken is not None
    assert resumed is not None
    assert broken[0] < resumed[0] < broken[1] == resumed[1]


FATAL: list[tuple[faults.FaultOf, type[errors.WarmshelfError]]] = [
    (faults.Stall(after=LOOKS), errors.SourceUnavailable),
    (faults.Silent(after=LOOKS), errors.SourceUnavailable),
    (faults.Drip(after=LOOKS), errors.SourceUnavailable),
    (faults.DripHead(after=LOOKS), errors.SourceUnavailable),
    (faults.Break(after=LOOKS, times=99), errors.SourceUnavailable),
    (faults.Truncate(after=LOOKS), errors.SourceChangedDuringLoad),
    (faults.ChangeEtag(after=LOOKS), errors.SourceChangedDuringLoad),
    (faults.ChangeFile(after=LOOKS, times=1), errors.SourceChangedDuringLoad),
    (faults.ChangeFile(after=LOOKS + 1, times=1), errors.SourceChangedDuringLoad),
    (faults.IgnoreRange(after=LOOKS), errors.SourceUnavailable),
    (faults.EarlierRange(after=LOOKS), errors.SourceUnavailable),
    (faults.RangeAsWhole(after=LOOKS), errors.WarmshelfError),
    (faults.LieAboutLength(after=LOOKS), errors.SourceUnavailable),
    (faults.LieAboutLength(after=LOOKS, by=-1), errors.SourceUnavailable),
    (faults.ChunkedTooLong(after=LOOKS), errors.SourceUnavailable),
    (faults.GzipAnyway(after=LOOKS), errors.InvalidSpec),
    (faults.NoValidators(after=LOOKS), errors.SourceChangedDuringLoad),
    (faults.Status(after=LOOKS, status=503), errors.SourceUnavailable),
    (faults.Status(after=LOOKS, status=429, headers={"Retry-After": "3600"}), errors.SourceUnavailable),
    (faults.Status(after=LOOKS, status=403), errors.SourceUnavailable),
    (faults.Status(after=LOOKS, status=404), errors.SourceNotFound),
    (faults.Redirect(after=LOOKS, to=lambda path: "http://169.254.169.254" + path), errors.SourceNotAllowed),
    (faults.Redirect(after=LOOKS, to=lambda path: "file:///etc/passwd"), errors.SourceNotAllowed),
    (faults.Redirect(after=LOOKS, to=lambda path: path), errors.SourceUnavailable),
]


@pytest.mark.parametrize(
    ("fault", "error"), FATAL, ids=[f"{type(fault).__name__}-{number}" for number, (fault, _) in enumerate(FATAL)]
)
def test_what_fails_for_good_is_typed_and_leaves_nothing_behind(
    web: Web, shelf: warmshelf.Shelf, reader: Daemon, fault: faults.FaultOf, error: type[errors.WarmshelfError]
) -> None:
    """B29, S3 to S8, S11: bytes are right or there are none; the file as it should be then loads at once."""
    url = one(web)
    other = web.put("/m/other", {"model.safetensors": MODEL}) + "model.safetensors"
    web.faults.append(lambda handler, asked: "/m/one/" in asked.path and fault(handler, asked))
    shelf.register("a", url)
    with pytest.raises(error) as failed:
        shelf.acquire("a", timeout=20)
    assert type(failed.value) in errors.TABLE.values()
    assert shelf.get("a").state is warmshelf.ArtifactState.FAILED
    assert len(web.requests_for("model.safetensors")) < 25
    eventually(lambda: reader.leftovers() == [] and reader.arena_bytes() == 0, "every byte is given back")
    shelf.register("other", other)
    assert acquired(shelf, "other") == WANTED
    web.faults.clear()
    one(web)
    assert acquired(shelf, "a") == WANTED


UNSUITABLE: list[tuple[faults.FaultOf, type[errors.WarmshelfError], str]] = [
    (faults.IgnoreRange(), errors.InvalidSpec, "no ranges"),
    (faults.NoValidators(), errors.InvalidSpec, "neither ETag nor Last-Modified"),
    (faults.GzipAnyway(), errors.InvalidSpec, "encoded"),
    (faults.Status(status=404), errors.SourceNotFound, "is not there"),
    (faults.Status(status=403), errors.SourceUnavailable, "403"),
    (faults.Truncate(), errors.SourceTruncated, "bytes"),
]


@pytest.mark.parametrize(("fault", "error", "text"), UNSUITABLE, ids=[type(one[0]).__name__ for one in UNSUITABLE])
def test_a_server_that_will_not_do_is_refused_at_registration(
    web: Web, shelf: warmshelf.Shelf, fault: faults.FaultOf, error: type[errors.WarmshelfError], text: str
) -> None:
    fault.seen = 0
    web.faults.append(fault)
    with pytest.raises(error, match=text):
        shelf.register("a", one(web))
    assert shelf.list() == []


def test_bytes_that_were_turned_over_are_refused_by_the_digest(web: Web, shelf: warmshelf.Shelf) -> None:
    """S9."""
    url = one(web)
    shelf.register("a", url, digest=content_digest(TENSORS))
    web.faults.append(faults.Flip(after=2, times=99))
    with pytest.raises(errors.DigestMismatch):
        shelf.acquire("a", timeout=20)
    web.faults.clear()
    assert acquired(shelf, "a") == WANTED


def test_another_version_is_refused_until_it_is_asked_for(web: Web, shelf: warmshelf.Shelf) -> None:
    """B01, over HTTP."""
    url = one(web)
    shelf.register("a", url)
    assert acquired(shelf, "a") == WANTED
    eventually(lambda: shelf.get("a").digest != "", "the digest is known")
    shelf.evict("a")
    web.etag = lambda data: '"the same bytes on another server"'
    assert acquired(shelf, "a") == WANTED
    shelf.evict("a")
    other = {name: (dtype, shape, data[:-1] + b"?") for name, (dtype, shape, data) in TENSORS.items()}
    web.put("/m/one", {"model.safetensors": safetensors_bytes(other)})
    web.etag = Web().etag
    with pytest.raises(errors.SourceChanged):
        shelf.acquire("a", timeout=20)
    assert shelf.register("a", url, replace=True).generation == 2
    assert acquired(shelf, "a") == {name: data for name, (_, _, data) in other.items()}

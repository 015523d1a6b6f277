"""Artifacts in Redis, in our own layout: from ``warmshelf push --store`` to bytes in a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, adapter_files, pair
from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from kit.redis_server import RedisServer, redis_server
from kit.scrape import HTTP, pages_of
from warmshelf import ArtifactState, errors
from warmshelf.redis_layout import chunk_key, manifest_key
from warmshelf.redis_store import StoreAccess, write_directory
from warmshelf.types import LoadPhase

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


CANARY = "canary-9f3c1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as it:
        yield it


@pytest.fixture
def daemon_of_redis(daemon: Daemon, server: RedisServer) -> Iterator[Daemon]:
    yield start(daemon, server)
    with server.client() as client:
        client.flushall()


def start(daemon: Daemon, server: RedisServer, **settings: str) -> Daemon:
    return daemon.start("--budget", "64MiB", "--allow-source", server.uri("models"), **settings)


def write_adapter(directory: Path) -> dict[str, bytes]:
    """Write an adapter of more than one chunk and return its tensors."""
    directory.mkdir()
    shapes = {**pair("q_proj", rank=8, columns=70_000, rows=60_000), **pair("k_proj", rank=8)}
    files = adapter_files(shapes, r=8)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    from safetensors import deserialize  # noqa: PLC0415

    return {name: bytes(row["data"]) for name, row in deserialize(files["adapter_model.safetensors"])}


def push(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warmshelf.cli", "--address", daemon.address, "push", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_pushed_adapter_comes_back_by_its_id_alone(
    daemon_of_redis: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    """Pushed, mapped, streamed, evicted, and after a restart without its directory: always the same bytes."""
    daemon, tensors = daemon_of_redis, write_adapter(tmp_path / "adapter")
    config = (tmp_path / "adapter" / CONFIG).read_bytes()
    done = push(daemon, "org/a:1", str(tmp_path / "adapter"), "--store", server.uri("models"), "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["spec"]["source"]["uri"] == server.uri("models/org/a%3A1")
    for path in (tmp_path / "adapter").iterdir():
        path.unlink()
    with daemon.connect() as shelf, warmshelf.connect(daemon.tcp_address) as far:
        for attempt in (shelf, far):
            with attempt.acquire("org/a:1", timeout=20) as lease:
                assert lease.transport == ("mapped" if attempt is shelf else "streamed")
                assert read_all(lease) == tensors
                assert lease.config_json == config
            shelf.evict("org/a:1")
        digest = shelf.get("org/a:1").digest
    daemon.kill()
    start(daemon, server)
    with daemon.connect() as shelf, shelf.acquire("org/a:1", timeout=20) as lease:
        assert read_all(lease) == tensors
        assert lease.artifact.digest == digest


def write_base(directory: Path, tag: int, size: int = 6 << 20) -> dict[str, bytes]:
    return write_model(directory / "model.safetensors", tag, size)


def test_one_damaged_artifact_hurts_no_other_and_the_repaired_one_loads_at_once(
    daemon_of_redis: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    """S16, B19, B21: one chunk lost, flipped, short, of another type; its memory is given back each time."""
    good, bad = write_base(tmp_path / "good", 1), write_base(tmp_path / "bad", 2)
    uris = {name: write_directory(server.uri("models"), name, tmp_path / name) for name in ("good", "bad")}
    with daemon_of_redis.connect() as shelf, server.client() as client:
        for name, uri in uris.items():
            shelf.register(name, uri)
        key = chunk_key("models/bad", client.hget(manifest_key("models/bad"), "etag").decode(), "model.safetensors", 3)
        whole = client.get(key)
        for damage, expected in (
            (lambda: client.delete(key), errors.SourceTruncated),
            (lambda: client.set(key, whole[:-1]), errors.SourceTruncated),
            (lambda: client.setrange(key, 9, b"\xff\x01"), errors.DigestMismatch),
            (lambda: client.rename(key, "old") and client.lpush(key, b"x"), errors.MalformedArtifact),
        ):
            damage()
            with pytest.raises(expected):
                shelf.acquire("bad", timeout=20)
            assert shelf.get("bad").state is ArtifactState.FAILED
            eventually(lambda: len(daemon_of_redis.segments()) <= 1, "the half-read segment is gone")
            with shelf.acquire("good", timeout=20) as lease:
                assert read_all(lease) == good
            shelf.evict("good")
            client.delete(key)
            client.set(key, whole)
        with shelf.acquire("bad", timeout=20) as lease:
            assert read_all(lease) == bad


def test_what_was_flushed_is_not_found_while_what_is_resident_is_served(
    daemon_of_redis: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    """R5, B37: written again, the ID loads again, and equal bytes are the same generation."""
    tensors = write_base(tmp_path / "a", 3)
    uri = write_directory(server.uri("models"), "a", tmp_path / "a")
    with daemon_of_redis.connect() as shelf, server.client() as client:
        shelf.register("a", uri)
        shelf.acquire("a", timeout=20).release()
        eventually(lambda: shelf.get("a").digest != "", "the digest is known")
        client.flushall()
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors
        shelf.evict("a")
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("a", timeout=20)
        write_directory(server.uri("models"), "a", tmp_path / "a")
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors
        assert shelf.get("a").generation == 1
        write_base(tmp_path / "a", 4)
        write_directory(server.uri("models"), "a", tmp_path / "a")
        shelf.evict("a")
        with pytest.raises(errors.SourceChanged):
            shelf.acquire("a", timeout=20)


def test_a_source_that_is_flushed_or_replaced_while_it_is_read_fails_the_load(
    daemon: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    """S2, R5: no mixture of two writings is ever served."""
    start(daemon, server, failpoints="load.part=delay(500)")
    tensors = write_base(tmp_path / "a", 5, 40 << 20)
    uri = write_directory(server.uri("models"), "a", tmp_path / "a")
    changed = {
        errors.SourceNotFound: lambda client: client.flushall(),
        errors.SourceChangedDuringLoad: lambda _: write_directory(server.uri("models"), "a", tmp_path / "a"),
    }
    with daemon.connect() as shelf, server.client() as client:
        for expected, change in changed.items():
            write_directory(server.uri("models"), "a", tmp_path / "a")
            shelf.register("a", uri, replace=True)
            progress = iter(shelf.load("a", timeout=30))
            while next(progress).phase is not LoadPhase.READ:
                pass
            change(client)
            with pytest.raises(expected):
                list(progress)
            assert daemon.segments() == []
        write_directory(server.uri("models"), "a", tmp_path / "a")
        shelf.register("a", uri, replace=True)
        with shelf.acquire("a", timeout=30) as lease:
            assert read_all(lease) == tensors


def test_a_paused_server_delays_no_other_artifact_and_no_call_for_ever(
    daemon: Daemon, server: RedisServer, tmp_path: Path, models: Path
) -> None:
    """R3: SIGSTOP."""
    start(daemon, server)
    other = write_model(models / "b.safetensors", 7)
    write_base(tmp_path / "a", 6)
    uri = write_directory(server.uri("models"), "a", tmp_path / "a")
    with daemon.connect() as shelf, daemon.connect() as beside, ThreadPoolExecutor() as threads:
        shelf.register("a", uri)
        server.pause()
        try:
            waiting = threads.submit(shelf.acquire, "a", timeout=20)
            beside.register("b", f"file://{models}/b.safetensors")
            with beside.acquire("b", timeout=2) as lease:
                assert read_all(lease) == other
            with pytest.raises(errors.DeadlineExceeded):
                beside.acquire("a", timeout=0.5)
            assert isinstance(waiting.exception(20), errors.SourceUnavailable)
        finally:
            server.resume()
        shelf.acquire("a", timeout=20).release()


def test_the_password_is_nowhere_but_where_the_operator_put_it(daemon: Daemon, tmp_path: Path) -> None:
    """B33, I11: logged in and refused, from a file and in a URI; logs, errors, metrics, listings and registry."""
    config, secret = tmp_path / "warmshelf.toml", tmp_path / "secret"
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis", password=CANARY) as server:
        write_base(tmp_path / "a", 8, 1 << 20)
        uri = write_directory(server.uri("models"), "a", tmp_path / "a", access=StoreAccess(password=CANARY))
        config.write_text(f'[[source]]\nprefix = "{server.uri()}"\npassword = "file:{secret}"\n')
        secret.write_text(f"{CANARY}\n")
        daemon.start("--config", str(config), "--allow-source", server.uri("models"), *HTTP)
        seen = []
        with daemon.connect() as shelf:
            shelf.register("a", uri)
            shelf.acquire("a", timeout=20).release()
            shelf.evict("a")
            secret.write_text(f"{CANARY}-no-more\n")
            for source in (uri, f"redis://:{CANARY}@{server.host}:{server.port}/0/models/a"):
                with pytest.raises((errors.SourceUnavailable, errors.InvalidSpec)) as caught:
                    shelf.register("b", source)
                seen.append(f"{caught.value} {caught.value.details}")
            seen += [repr(shelf.list()), repr(shelf.get("a")), pages_of(daemon).get("/metrics")[1]]
        done = push(daemon, "c", str(tmp_path / "a"), "--store", f"redis://me:{CANARY}@{server.host}:{server.port}/0")
        assert done.returncode == 1
        seen += [done.stdout, done.stderr, daemon.log.read_text(), Path(f"/proc/{daemon.pid}/cmdline").read_text()]
        for file in filter(Path.is_file, daemon.registry.parent.rglob("*")):
            seen.append(file.read_bytes().decode("latin-1"))
        assert not [text for text in seen if CANARY in text]
        assert server.uri("models/a") in "".join(seen)


def test_a_model_that_tensorizer_wrote_is_acquired_bit_for_bit(
    daemon_of_redis: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    import torch  # noqa: PLC0415
    from tensorizer import TensorDeserializer, TensorSerializer  # noqa: PLC0415

    state = {"a.weight": torch.randn(700, 900), "b": torch.randn(5).to(torch.bfloat16), "c": torch.zeros(0, 2)}
    serializer = TensorSerializer(str(tmp_path / "a.tensors"))
    serializer.write_state_dict(state)
    serializer.close()
    with server.client() as client:
        TensorDeserializer(str(tmp_path / "a.tensors"), device="cpu", lazy_load=True).to_redis(client, "models/gpt")
    with daemon_of_redis.connect() as shelf:
        shelf.register("gpt", server.uri("models/gpt"))
        for _ in range(2):
            with shelf.acquire("gpt", timeout=20) as lease:
                assert lease.artifact.inspection is not None
                assert lease.artifact.inspection.format_name == "tensorizer"
                found = {name: bytes(lease[name]) for name in lease}
                expected = {n: t.reshape(-1).view(torch.uint8).numpy().tobytes() for n, t in state.items()}
                assert found == expected
            shelf.evict("gpt")

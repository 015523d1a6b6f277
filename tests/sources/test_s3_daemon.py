"""S3 through a real daemon: register once, and the ID alone is enough from then on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tensorizer import TensorSerializer

import warmshelf
import warmshelf.torch
from kit.adapters import adapter_files, pair
from kit.fault_proxy import Fault, FaultProxy, Hold
from kit.models import Tensor, filled, pattern, safetensors_bytes, write_model, write_shards
from kit.processes import Daemon, eventually, read_all
from kit.scrape import HTTP, pages_of
from kit.weed import ACCESS_KEY, SECRET_KEY, Bucket
from warmshelf import ArtifactState, errors

ENV = {"KEY_OF_TEST": ACCESS_KEY, "SECRET_OF_TEST": SECRET_KEY, "WRONG_OF_TEST": "wrong-canary-3"}
CANARIES = (ACCESS_KEY, SECRET_KEY, "canary")
LIMITS = {"source_connect_seconds": 1, "source_stall_seconds": 1, "source_retry_seconds": 2}


def start(daemon: Daemon, bucket: Bucket, endpoint: str = "", *options: str, secret: str = "SECRET_OF_TEST") -> Daemon:
    """Start the daemon with the bucket allowed."""
    config = daemon.root / "daemon.toml"
    limits = "".join(f"{name} = {value}\n" for name, value in LIMITS.items())
    config.write_text(
        f'{limits}\n[[source]]\nprefix = "{bucket.uri}"\nendpoint = "{endpoint or bucket.server.endpoint}"\n'
        f'access_key_id = "env:KEY_OF_TEST"\nsecret_access_key = "env:{secret}"\n'
    )
    return daemon.start(
        "--config", str(config), "--budget", "256MiB", "--allow-source", bucket.uri, *HTTP, *options, env=ENV
    )


def put_base(bucket: Bucket, directory: Path) -> dict[str, Tensor]:
    """Write a sharded base with its index and its config, the first shard in parts; return its tensors."""
    shards = [
        {f"a{i}": ("BF16", (1000, 1000), pattern(i, 2_000_000)) for i in range(4)},
        {"b": ("F32", (), pattern(9, 4)), "c": ("U8", (0, 3), b""), "d": ("F8_E4M3", (5000,), pattern(8, 5000))},
    ]
    first, *others = write_shards(directory, shards)
    (directory / "config.json").write_text('{"architectures": ["X"]}')
    bucket.put_in_parts(f"bases/one/{first.name}", first.read_bytes())
    for path in (*others, directory / "config.json", directory / "model.safetensors.index.json"):
        bucket.put(f"bases/one/{path.name}", path.read_bytes())
    return {name: tensor for shard in shards for name, tensor in shard.items()}


def check_both_ways(daemon: Daemon, artifact_id: str, expected: Mapping[str, bytes]) -> None:
    """Acquire mapped, and over TCP streamed, and compare every byte."""
    with daemon.connect() as shelf, shelf.acquire(artifact_id, timeout=30) as lease:
        assert lease.transport == "mapped"
        assert read_all(lease) == expected
    with (
        warmshelf.connect(daemon.tcp_address, arena="/nowhere") as shelf,
        shelf.acquire(artifact_id, timeout=30) as lease,
    ):
        assert lease.transport == "streamed"
        assert read_all(lease) == expected


def test_every_kind_of_source_is_loaded_evicted_and_found_again_by_its_id(
    daemon: Daemon, bucket: Bucket, tmp_path: Path
) -> None:
    """A sharded base, an adapter, a single object and a `.tensors` object, also after a restart."""
    base = put_base(bucket, tmp_path / "base")
    adapter = adapter_files(pair("model.layers.0.self_attn.q_proj"))
    bucket.put_all("loras/a/", adapter)
    bucket.put_all("loras/ab/", adapter_files(pair("other.q_proj")))
    single = {"w": ("BF16", (3, 1 << 20), pattern(5, 6 << 20))}
    bucket.put("single/model-v1.safetensors", safetensors_bytes(single))
    state = write_tensors(bucket, tmp_path / "x.tensors")
    expected: dict[str, dict[str, bytes]] = {
        "base": {name: data for name, (_, _, data) in base.items()},
        "single": {name: data for name, (_, _, data) in single.items()},
    }
    start(daemon, bucket)
    with daemon.connect() as shelf:
        shelf.register("base", f"{bucket.uri}/bases/one/")
        shelf.register("lora", f"{bucket.uri}/loras/a")
        shelf.register("single", f"{bucket.uri}/single/model-v1.safetensors")
        artifact = shelf.register("tensors", f"{bucket.uri}/x.tensors")
        assert artifact.inspection is not None
        assert artifact.inspection.format_name == "tensorizer"
        for name in ("base", "lora", "single", "tensors"):
            for _ in shelf.load(name):
                pass
    for restarted in (False, True):
        for name in ("base", "single"):
            check_both_ways(daemon, name, expected[name])
        with daemon.connect() as shelf:
            with shelf.acquire("lora", timeout=30) as lease:
                assert lease.config_json == adapter["adapter_config.json"]
                assert sorted(lease) == sorted(pair("model.layers.0.self_attn.q_proj"))
            with shelf.acquire("tensors", timeout=30) as lease:
                tensors = warmshelf.torch.tensors(lease)
                assert all(torch.equal(tensors[name], tensor) for name, tensor in state.items())
                del tensors
            for name in ("base", "lora", "single", "tensors"):
                shelf.evict(name)
                assert shelf.get(name).state is ArtifactState.REGISTERED
        if not restarted:
            daemon.kill()
            start(daemon, bucket)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def write_tensors(bucket: Bucket, path: Path) -> dict[str, torch.Tensor]:
    state = {"embed": torch.randn(3000, 64).to(torch.bfloat16), "layer": torch.randn(640, 64)}
    serializer = TensorSerializer(str(path))
    serializer.write_state_dict(state)
    serializer.close()
    bucket.put(path.name, path.read_bytes())
    return state


# --- changes --------------------------------------------------------------------------


def test_an_object_that_is_replaced_is_noticed_and_equal_bytes_keep_the_generation(
    daemon: Daemon, bucket: Bucket
) -> None:
    """B01: written anew with the same bytes, then with others, then asked for."""
    start(daemon, bucket)
    key, uri = "m.safetensors", f"{bucket.uri}/m.safetensors"
    bucket.put(key, safetensors_bytes(filled(1)))
    with daemon.connect() as shelf:
        shelf.register("m", uri)
        bucket.put(key, safetensors_bytes(filled(2)))
        with pytest.raises(errors.SourceChanged):
            shelf.acquire("m", timeout=20)
        bucket.put(key, safetensors_bytes(filled(3)))
        shelf.register("m", uri, replace=True)
        shelf.acquire("m", timeout=20).release()
        eventually(lambda: shelf.get("m").digest != "", "the digest is known")
        generation = shelf.get("m").generation
        shelf.evict("m")
        wait_for_another_second(bucket, key, safetensors_bytes(filled(3)))
        with shelf.acquire("m", timeout=20) as lease:
            assert (lease.artifact.generation, bytes(lease["w"])) == (generation, bytes([3]) * 256)
        shelf.evict("m")
        bucket.put(key, safetensors_bytes(filled(4)))
        with pytest.raises(errors.SourceChanged):
            shelf.acquire("m", timeout=20)
        shelf.register("m", uri, replace=True)
        with shelf.acquire("m", timeout=20) as lease:
            assert lease.artifact.generation > generation
            assert bytes(lease["w"]) == bytes([4]) * 256


def wait_for_another_second(bucket: Bucket, key: str, data: bytes) -> None:
    """Write until the time of the object, which counts whole seconds, is another."""
    client = bucket.server.client()

    def modified() -> object:
        return client.head_object(Bucket=bucket.name, Key=key)["LastModified"]

    before = modified()

    def rewritten() -> bool:
        bucket.put(key, data)
        return modified() != before

    eventually(rewritten, "the object has another time")


def test_an_object_that_is_replaced_during_a_load_fails_it_and_leaves_nothing(
    daemon: Daemon, bucket: Bucket, proxy: FaultProxy
) -> None:
    """B29: half of the reads are of the old object."""
    start(daemon, bucket, proxy.endpoint, "--allow-source", bucket.uri)
    key, size = "m.safetensors", 40 << 20
    old = {"w": ("U8", (size,), pattern(1, size))}
    bucket.put(key, safetensors_bytes(old))
    with daemon.connect() as shelf:
        shelf.register("m", f"{bucket.uri}/{key}", follow=True)
        proxy.fault = hold = Hold()
        caught: list[errors.WarmshelfError] = []
        thread = threading.Thread(target=lambda: caught.append(failure(shelf)))
        thread.start()
        assert hold.reached.wait(20)
        new = {"w": ("U8", (size,), pattern(2, size))}
        bucket.put(key, safetensors_bytes(new))
        proxy.fault = Fault()
        hold.release()
        thread.join()
        assert isinstance(caught[0], errors.SourceChangedDuringLoad)
        assert daemon.segments() == []
        assert daemon.arena_bytes() == 0
        with shelf.acquire("m", timeout=20) as lease:
            assert bytes(lease["w"]) == new["w"][2]


def failure(shelf: warmshelf.Shelf) -> errors.WarmshelfError:
    with pytest.raises(errors.WarmshelfError) as caught:
        shelf.acquire("m", timeout=30)
    return caught.value


# --- faults ----------------------------------------------------------------------------


def test_a_bucket_that_does_not_answer_delays_no_other_source(
    daemon: Daemon, bucket: Bucket, proxy: FaultProxy
) -> None:
    """The base of a silent server fails in time; meanwhile a file is registered and loaded."""
    bucket.put("m.safetensors", safetensors_bytes({"w": ("U8", (4 << 20,), pattern(1, 4 << 20))}))
    file = write_model(daemon.models / "f.safetensors", 2)
    start(daemon, bucket, proxy.endpoint)
    with daemon.connect() as shelf:
        shelf.register("m", f"{bucket.uri}/m.safetensors")
        proxy.fault = hold = Hold()
        caught: list[errors.WarmshelfError] = []
        thread = threading.Thread(target=lambda: caught.append(failure(shelf)))
        thread.start()
        assert hold.reached.wait(20)
        shelf.register("f", f"file://{daemon.models}/f.safetensors")
        with shelf.acquire("f", timeout=10) as lease:
            assert read_all(lease) == file
        thread.join()
        assert isinstance(caught[0], errors.SourceUnavailable)
        assert caught[0].retryable
        hold.release()
        proxy.fault = Fault()
        shelf.acquire("m", timeout=20).release()


def test_secrets_are_nowhere_and_wrong_ones_are_told(daemon: Daemon, bucket: Bucket) -> None:
    """B33: not in errors, log, metrics, listings, registry, segments' manifests."""
    bucket.put("m.safetensors", safetensors_bytes(filled(1)))
    start(daemon, bucket, secret="WRONG_OF_TEST")
    texts = []
    with daemon.connect() as shelf:
        for uri in (
            f"{bucket.uri}/m.safetensors",
            f"{bucket.uri}/m.safetensors?X-Amz-Signature=canary",
            "s3://u:canary@b1b/x",
        ):
            with pytest.raises(errors.WarmshelfError) as caught:
                shelf.register("m", uri)
            texts.append(f"{caught.value} {caught.value.details}")
        assert "SignatureDoesNotMatch" in texts[0]
        assert "SOURCE_NOT_ALLOWED" in texts[0]
    daemon.kill()
    start(daemon, bucket)
    with daemon.connect() as shelf:
        shelf.register("m", f"{bucket.uri}/m.safetensors")
        shelf.acquire("m", timeout=20).release()
        texts += [repr(shelf.list()), pages_of(daemon).text()]
    files = [
        daemon.log,
        *daemon.registry.parent.glob("*.sqlite*"),
        *(daemon.arena / name for name in daemon.segments()),
    ]
    texts += [path.read_bytes().decode(errors="replace") for path in files]
    assert len(texts) >= 8
    for canary in CANARIES:
        assert not [text for text in texts if canary in text]


def test_an_adapter_of_many_small_tensors_is_loaded_by_few_requests(
    daemon: Daemon, bucket: Bucket, proxy: FaultProxy
) -> None:
    """Each costs a round trip: to look, and for every 4 MiB of the weights; what was inspected is not read again."""
    shapes = {name: shape for i in range(210) for name, shape in pair(f"layers.{i}.q_proj", 8, 1500, 1500).items()}
    files = adapter_files(shapes, r=8)
    bucket.put_all("lora/", files)
    start(daemon, bucket, proxy.endpoint)
    with daemon.connect() as shelf:
        shelf.register("lora", f"{bucket.uri}/lora")
        proxy.passed.clear()
        with shelf.acquire("lora", timeout=20) as lease:
            weights = b"".join(bytes(lease[name]) for name in shapes)
    assert files["adapter_model.safetensors"].endswith(weights)
    assert len(proxy.passed) <= 2 + -(-len(weights) // (4 << 20))
    assert not any("range: bytes=0-" in request.head.lower() for request in proxy.passed)  # where the header is

"""What a shared registry costs: how soon other nodes know, how long reading everything takes, memory, commands.

And how often nodes that start together read a source.

    python -m benchmarks.fleet [--quick] [--cold]

Starts a redis-server and daemons of its own on loopback, and prints each figure beside its aim.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import redis

import warmshelf
from benchmarks import fleet_cold
from benchmarks.health_probe import probing
from benchmarks.redis import redis_server
from warmshelf.errors import ArtifactNotFound
from warmshelf.types import NewArtifact, SyncState

READY_SECONDS_MAX = 60.0
QUIET_SECONDS = 15.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer registrations: shows that it runs")
    parser.add_argument("--cold", action="store_true", help="only what nodes read that start together")
    options = parser.parse_args()
    quick, only_cold = options.quick, options.cold
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(redis_server(folder))
        models = folder / "models"
        models.mkdir()
        if not only_cold:
            _measure(folder, models, port, 500 if quick else 10_000, 50 if quick else 1000)
        node = partial(_node, models=models, port=port)
        fleet_cold.measure(folder, node, _say, (32 if quick else 200) * 1_000_000)


def _measure(folder: Path, models: Path, port: int, count: int, samples: int) -> None:
    with (
        _node(folder / "a", models=models, port=port) as a,
        _node(folder / "b", models=models, port=port) as b,
        redis.Redis(port=port) as client,
    ):
        adapters = [_write_adapter(models / str(number)) for number in range(8)]
        latencies = sorted(_latency(a, b, f"late/{number}", adapters[0]) for number in range(samples))
        _say("registered on A, known on B, median", latencies[samples // 2] * 1000, "ms")
        _say("registered on A, known on B, p99", latencies[int(samples * 0.99)] * 1000, "ms", 100)
        _idle(client)
        before = int(client.info("memory")["used_memory"])
        new = [NewArtifact(f"acme/adapter-{number:05}", str(adapters[number % 8])) for number in range(count)]
        began = time.perf_counter()
        refused = [one for one in a.register_many(new) if one.error]
        _say(f"{count} registered on A", time.perf_counter() - began, "s")
        if refused:
            raise RuntimeError(f"{len(refused)} were refused: {refused[0]}")
        last = new[-1].artifact_id
        _wait_for_all(b, [one.artifact_id for one in new], count + samples)
        _wait(lambda: _is_published(a, last))
        _say(f"{count} registered on A and known on B", time.perf_counter() - began, "s")
        used = int(client.info("memory")["used_memory"]) - before
        _say("Redis memory for each adapter", used / count, "bytes", 2048)
    with _node(folder / "c", models=models, port=port) as c:
        began = time.perf_counter()
        with probing(f"unix://{folder}/c/api.sock") as seconds:
            known = _wait_for_all(c, [one.artifact_id for one in new], count + samples)
        _say(f"a new node reads {count}, from its ready line", known - began, "s", 2)
        _say("its health meanwhile, p99", sorted(seconds)[int(len(seconds) * 0.99)] * 1000, "ms", 50)
    _again(folder / "c", models, port)


def _again(root: Path, models: Path, port: int) -> None:
    with redis.Redis(port=port) as client, _node(root, models=models, port=port):
        client.config_resetstat()
        began = time.perf_counter()
        client.client_kill_filter(_type="normal", skipme=True)
        _wait(lambda: int(client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0)) > 0)
        _say(
            "a node that has them reads everything again after a broken connection", time.perf_counter() - began, "s", 2
        )


def _idle(client: redis.Redis) -> None:
    """Two nodes with nothing to do."""
    client.config_resetstat()
    time.sleep(QUIET_SECONDS)
    calls = sum(one["calls"] for name, one in client.info("commandstats").items() if not name.startswith("cmdstat_c"))
    _say("commands of an idle node", calls / 2 / QUIET_SECONDS, "/s", 1)


def _latency(a: warmshelf.Shelf, b: warmshelf.Shelf, artifact_id: str, source: Path) -> float:
    a.register(artifact_id, str(source))
    began = time.perf_counter()
    while not _knows(b, artifact_id):
        pass
    return time.perf_counter() - began


def _wait_for_all(shelf: warmshelf.Shelf, ids: Sequence[str], total: int) -> float:
    """Wait until a node knows all; return when that was so. A listing, which takes a while itself, only proves it."""
    began = time.perf_counter()
    for artifact_id in ids[:: max(1, len(ids) // 100)]:
        _wait(lambda wanted=artifact_id: _knows(shelf, wanted))
    known = time.perf_counter()
    while len(shelf.list()) != total:
        known = time.perf_counter()
        if known > READY_SECONDS_MAX + began:
            raise RuntimeError("it takes too long")
    return known


def _knows(shelf: warmshelf.Shelf, artifact_id: str) -> bool:
    try:
        shelf.get(artifact_id)
    except ArtifactNotFound:
        return False
    return True


def _is_published(shelf: warmshelf.Shelf, artifact_id: str) -> bool:
    sync = shelf.get(artifact_id).sync
    return sync is not None and sync.state is SyncState.PUBLISHED


def _wait(condition: object) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise RuntimeError("it takes too long")
        time.sleep(0.01)


def _say(name: str, value: float, unit: str, aim: float | None = None) -> None:
    against = "" if aim is None else f"   aim: at most {aim:g} {unit}: {'reached' if value <= aim else 'MISSED'}"
    print(f"{name:72} {value:10.3g} {unit}{against}", flush=True)


@contextmanager
def _node(root: Path, *options: str, models: Path, port: int) -> Iterator[warmshelf.Shelf]:
    """Run a daemon on this registry; give a shelf on it."""
    root.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as arena:
        address = f"unix://{root}/api.sock"
        command = [sys.executable, "-m", "warmshelfd", "--listen", address, "--arena", arena, "--budget", "256MiB"]
        command += [*options, "--registry", f"redis://127.0.0.1:{port}/0", "--allow-source", str(models)]
        environ = {**os.environ, "WARMSHELF_REGISTRY_COPY": str(root / "registry.sqlite")}
        with (root / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environ)
        try:
            if process.stdout is None or b" ready: " not in process.stdout.readline():
                raise RuntimeError(f"a daemon did not start; see {root}/log")
            with warmshelf.connect(address) as shelf:
                yield shelf
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def _write_adapter(directory: Path) -> Path:
    """Write an adapter of 32 layers on two modules."""
    directory.mkdir()
    modules = [f"model.layers.{layer}.self_attn.{name}" for layer in range(32) for name in ("q_proj", "v_proj")]
    head, offset = {}, 0
    for module in modules:
        for part, shape in (("lora_A", (2, 16)), ("lora_B", (16, 2))):
            head[f"base_model.model.{module}.{part}.weight"] = {
                "dtype": "BF16",
                "shape": shape,
                "data_offsets": (offset, offset + 64),
            }
            offset += 64
    text = json.dumps(head).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(offset)
    (directory / "adapter_model.safetensors").write_bytes(data)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


if __name__ == "__main__":
    main()

"""Every block that workers get says whose it is: none is torn, stale, shifted or another artifact's."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

import warmshelf
from kit.marked import BLOCK_BYTES, Mark, fault, marked, owners, parse
from kit.models import Tensor, safetensors_bytes
from kit.processes import Daemon
from warmshelf import errors

pytestmark = pytest.mark.e2e

SIZES = {"a": 300_016, "b": 4096, "odd": 1_000_001, "tiny": 3}
DTYPES = {"a": "BF16", "b": "F8_E4M3", "odd": "U8", "tiny": "U8"}
WIDTH = {"BF16": 2}


def tensors_of(tenant: int, artifact: int, generation: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for number, (name, size) in enumerate(SIZES.items()):
        dtype = DTYPES[name]
        found[name] = (dtype, (size // WIDTH.get(dtype, 1),), marked(Mark(tenant, artifact, generation, number), size))
    return found


def faults_of(lease: warmshelf.Lease, tenant: int, artifact: int) -> list[str]:
    """What is wrong with the tensors of a lease; the first block says of which generation they all must be."""
    known = parse(bytes(lease["a"][:BLOCK_BYTES]))
    if known is None:
        return ["no mark at the beginning"]
    generation = known[0].generation
    marks = {name: Mark(tenant, artifact, generation, number) for number, name in enumerate(SIZES)}
    found = [fault(mark, bytes(lease[name])) for name, mark in marks.items()]
    found += [f"{name} has {len(lease[name])} bytes" for name in SIZES if len(lease[name]) != SIZES[name]]
    return [text for text in found if text]


def test_a_mark_tells_what_is_wrong_with_a_block() -> None:
    mark = Mark(1, 2, 3)
    data = marked(mark, 96)
    assert fault(mark, data) == ""
    assert fault(mark, data[37:], 37) == ""
    assert "Mark(tenant=1, artifact=2, generation=2" in fault(
        mark, data[:32] + marked(Mark(1, 2, 2), 48)[32:] + data[48:]
    )
    assert "block 0" in fault(mark, data[:48] + data[:16] + data[64:])
    assert "zeros" in fault(mark, data[:16] + bytes(16) + data[32:])
    assert "no mark" in fault(mark, data[:16] + b"\1" * 16 + data[32:])
    assert owners(b"?" + data[5:] + marked(Mark(7, 8, 9), 32)) == {(1, 2, 3), (7, 8, 9)}


def test_workers_that_map_and_stream_while_artifacts_are_replaced_and_evicted_get_only_their_own_blocks(
    daemon: Daemon, models: Path
) -> None:
    """I1, I2: two tenants, a budget for half of them, four workers, sources that are replaced meanwhile."""
    artifacts = [(tenant, artifact) for tenant in (1, 2) for artifact in range(3)]
    for tenant, artifact in artifacts:
        write(models, tenant, artifact, 1)
    daemon.start("--budget", "8MiB", "--adapter-floor", "0")
    failures: list[str] = []
    acquired: set[str] = set()
    stop = threading.Event()

    def work(seed: int) -> None:
        dice = random.Random(seed)
        address, arena = (daemon.address, None) if seed % 2 else (daemon.tcp_address, "/nowhere")
        with warmshelf.connect(address, arena=arena) as shelf:
            while not stop.is_set():
                acquired.add(look_once(shelf, *dice.choice(artifacts), failures))

    with daemon.connect() as shelf:
        for tenant, artifact in artifacts:
            shelf.register(f"t{tenant}/{artifact}", models / f"{tenant}-{artifact}.safetensors")
        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for worker in workers:
            worker.start()
        for generation in range(2, 4):
            for tenant, artifact in artifacts:
                path = write(models, tenant, artifact, generation)
                shelf.register(f"t{tenant}/{artifact}", path, replace=True)
        stop.set()
        for worker in workers:
            worker.join(60)
    assert failures == []
    assert {"mapped", "streamed"} <= acquired
    for name in daemon.segments():
        assert len(owners((daemon.arena / name).read_bytes())) == 1, "a segment has blocks of two artifacts"


def look_once(shelf: warmshelf.Shelf, tenant: int, artifact: int, failures: list[str]) -> str:
    """Acquire an artifact, note what is wrong with its bytes, and return how they came."""
    try:
        with shelf.acquire(f"t{tenant}/{artifact}", timeout=20) as lease:
            failures.extend(faults_of(lease, tenant, artifact))
            return lease.transport
    except (errors.SourceChanged, errors.SourceChangedDuringLoad, errors.ArenaFull):
        return ""  # no bytes are no wrong bytes


def write(models: Path, tenant: int, artifact: int, generation: int) -> Path:
    path = models / f"{tenant}-{artifact}.safetensors"
    new = path.with_suffix(".new")
    new.write_bytes(safetensors_bytes(tensors_of(tenant, artifact, generation)))
    new.rename(path)
    return path

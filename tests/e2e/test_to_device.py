"""Tensors on a device: names, dtypes, shapes and bits by either transport, what is refused, and a daemon that dies.

The device is the tests' own; ``tests/gpu`` has a real one.
"""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
import torch

import warmshelf
import warmshelf.torch
from kit.fake_device import FakeRuntime
from kit.models import Tensor, pattern, safetensors_bytes
from kit.processes import Daemon, eventually
from warmshelf import Shard
from warmshelf._device_ring import Ring
from warmshelf.device import place, place_arriving
from warmshelf.dtypes import DTYPES
from warmshelf.errors import FeatureUnsupported, InvalidRequest, UnsupportedDtype
from warmshelf.testing import FakeShelf

SMALL = Ring(slot_bytes=4096, slot_count=3, thread_count=2)

TENSORS: dict[str, Tensor] = {
    "model.embed_tokens.weight": ("BF16", (64, 48), pattern(1, 6144)),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", (48, 48), pattern(2, 4608)),
    "model.layers.0.self_attn.o_proj.weight": ("F32", (48, 48), pattern(3, 9216)),
    "model.layers.0.norm.weight": ("F16", (7,), pattern(4, 14)),
    "model.empty": ("F32", (0, 4), b""),
    "model.scalar": ("I64", (), pattern(5, 8)),
}


@pytest.fixture
def source(shared: Daemon, tmp_path: Path) -> Path:
    path = tmp_path / "base.safetensors"
    path.write_bytes(safetensors_bytes(TENSORS))
    return path


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def check(found: dict[str, torch.Tensor]) -> None:
    assert {name: (tuple(one.shape), raw(one)) for name, one in found.items()} == {
        name: (shape, data) for name, (_, shape, data) in TENSORS.items()
    }
    assert {str(one.dtype) for one in found.values()} == {
        f"torch.{d}" for d in ("bfloat16", "float32", "float16", "int64")
    }


@pytest.mark.parametrize("transport", ["mapped", "streamed"])
@pytest.mark.parametrize("way", ["lease", "arriving"])
def test_what_comes_to_the_device_is_what_the_source_has(
    shared: Daemon, source: Path, transport: str, way: str
) -> None:
    """B22, B23: and it stays there when the lease has ended."""
    address = shared.address if transport == "mapped" else shared.tcp_address
    with warmshelf.connect(address, timeout=30) as shelf:
        shelf.register("base", source)
        if way == "arriving":
            found = place_arriving(shelf.stream_tensors("base", writable=False), FakeRuntime(), SMALL)
        else:
            with shelf.acquire("base", writable=False) as lease:
                assert (lease.transport, lease.writable) == (transport, transport == "streamed")
                found = place(lease, FakeRuntime(), ring=SMALL)
        assert shelf.leases() == []
        shelf.remove("base")
        check(found)


@pytest.mark.parametrize("name", sorted(name for name, row in DTYPES.items() if hasattr(torch, row.torch_name or "-")))
def test_every_dtype_has_its_bits(name: str) -> None:
    """B22, B23, B25: those that no kernel computes with too."""
    packed, bits = DTYPES[name].packed, DTYPES[name].bits
    shapes = {"a": (3, 2 * packed), "none": (2, 0), "b": (5, 6)}
    with FakeShelf() as shelf:
        data = {each: pattern(7, math.prod(shape) * bits // 8) for each, shape in shapes.items()}
        if name == "BOOL":
            data = {each: bytes(len(one)) for each, one in data.items()}
        shelf.add("a", {each: (name, shape, data[each]) for each, shape in shapes.items()})
        with shelf.acquire("a", writable=False) as lease:
            found, plain = place(lease, FakeRuntime(), ring=SMALL), warmshelf.torch.tensors(lease)
    for each, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (plain[each].dtype, plain[each].shape)
        assert raw(tensor) == data[each]


@pytest.mark.parametrize("transport", ["mapped", "streamed"])
def test_a_rank_has_its_slices_there_and_dense(shared: Daemon, source: Path, transport: str) -> None:
    address = shared.address if transport == "mapped" else shared.tcp_address
    with warmshelf.connect(address, timeout=30) as shelf:
        shelf.register("base", source)
        with shelf.acquire("base", shard=Shard(1, 2), writable=False) as lease:
            expected = {name: (tuple(spec.shape), bytes(lease[name])) for name, spec in lease.specs.items()}
            found = place(lease, FakeRuntime(), ring=SMALL)
            with pytest.raises(InvalidRequest, match="nothing to register"):
                place(lease, FakeRuntime(), register=True)
    assert expected["model.layers.0.self_attn.o_proj.weight"][0] == (48, 24)
    assert {name: (tuple(one.shape), raw(one)) for name, one in found.items()} == expected
    assert all(one.is_contiguous() for one in found.values())


def test_a_mapping_that_is_registered_is_read_as_it_is_and_given_back(shared: Daemon, source: Path) -> None:
    runtime = FakeRuntime()
    with shared.connect(timeout=30) as shelf:
        shelf.register("base", source)
        with shelf.acquire("base", writable=False) as lease:
            check(place(lease, runtime, register=True))
            assert (runtime.slots, runtime.registered, len(runtime.register_sizes)) == ([], {}, 1)
            with pytest.raises(FeatureUnsupported, match="mapped read-only"):
                place(lease, FakeRuntime(reads_read_only=False), register=True)
        shelf.evict("base")
        runtime.copies.clear()
        eventually(lambda: shelf.capacity().unnamed_bytes == 0, "nothing holds the mapping")


def test_a_copy_on_write_mapping_never_goes_to_a_device(shared: Daemon, source: Path) -> None:
    runtime = FakeRuntime()
    with shared.connect(timeout=30) as shelf:
        shelf.register("base", source)
        with shelf.acquire("base") as lease:
            for register in (False, True):
                with pytest.raises(InvalidRequest, match="acquire it with writable=False"):
                    place(lease, runtime, register=register)
    assert (runtime.blocks, runtime.copies, runtime.register_sizes) == ([], [], [])


def test_a_read_only_lease_reads_but_takes_no_write(shared: Daemon, source: Path) -> None:
    """B45."""
    with shared.connect(timeout=30) as shelf:
        shelf.register("base", source)
        with shelf.acquire("base", writable=False) as lease, shelf.acquire("base") as other:
            assert (lease.writable, other.writable) == (False, True)
            view = lease["model.scalar"]
            with pytest.raises(TypeError, match="read-only"):
                view[0] = 1
            assert bytes(view) == TENSORS["model.scalar"][2] == bytes(other["model.scalar"])


def test_on_the_cpu_it_is_the_tensors_as_they_are(shared: Daemon, source: Path) -> None:
    with shared.connect(timeout=30) as shelf:
        shelf.register("base", source)
        with shelf.acquire("base") as lease:
            found, plain = warmshelf.torch.to_device(lease, "cpu"), warmshelf.torch.tensors(lease)
            assert [one.data_ptr() for one in found.values()] == [one.data_ptr() for one in plain.values()]
            with pytest.raises(InvalidRequest, match="not to meta"):
                warmshelf.torch.to_device(lease, torch.device("meta"))
        check(warmshelf.torch.stream_to_device(shelf, "base", "cpu"))
        check(found)


def test_a_dtype_that_torch_lacks_is_said_before_a_byte_moves() -> None:
    """B25."""
    runtime = FakeRuntime()
    with FakeShelf() as shelf:
        shelf.add("a", {"w": ("U8", (9,), bytes(9)), "x": ("F6_E2M3", (4,), bytes(3))})
        with shelf.acquire("a", writable=False) as lease, pytest.raises(UnsupportedDtype, match="'x'"):
            place(lease, runtime)
    assert runtime.blocks == []


@pytest.mark.parametrize("register", [False, True])
def test_a_daemon_that_dies_during_the_copy_takes_no_byte_away(daemon: Daemon, models: Path, register: bool) -> None:
    """Promise 9: what is mapped is there for as long as it is mapped."""
    (models / "base.safetensors").write_bytes(safetensors_bytes(TENSORS))
    daemon.start("--budget", "64MiB")

    def kill(count: int) -> None:
        if count == 2:
            daemon.kill(signal.SIGKILL)

    with daemon.connect(timeout=30) as shelf:
        shelf.register("base", models / "base.safetensors")
        with shelf.acquire("base", writable=False) as lease:
            check(place(lease, FakeRuntime(before_copy=kill), register=register, ring=SMALL))
    assert daemon.process is not None
    assert daemon.process.returncode == -signal.SIGKILL

"""Ranks of a tensor-parallel group take only their slices, mapped or streamed, by the ID alone."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import safetensors
import torch

import warmshelf
import warmshelf.numpy
import warmshelf.torch
from kit.models import Tensor, pattern, safetensors_bytes
from kit.plain import Plain, refused
from kit.processes import Daemon
from warmshelf import Rule, Shard
from warmshelf.errors import InvalidRequest
from warmshelf.v1 import transfer_pb2

WORLD = 4


def llama(layers: int = 3) -> dict[str, Tensor]:
    """Return the tensors of a small model; one has several chunks, one no elements."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": ("BF16", (2048, 768))}
    for i in range(layers):
        prefix = f"model.layers.{i}"
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": ("BF16", (64, 48)),
            f"{prefix}.self_attn.q_proj.bias": ("F32", (64,)),
            f"{prefix}.self_attn.o_proj.weight": ("BF16", (48, 64)),
            f"{prefix}.mlp.down_proj.weight": ("F8_E4M3", (1024, 1024)),
            f"{prefix}.input_layernorm.weight": ("F32", (48,)),
            f"{prefix}.mlp.up_proj.weight": ("BF16", (8, 0)),
        }
    shapes["scale"] = ("F32", ())
    bits = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
    tensors: dict[str, Tensor] = {}
    for tag, (name, (dtype, shape)) in enumerate(shapes.items()):
        size = bits[dtype]
        for dim in shape:
            size *= dim
        tensors[name] = (dtype, shape, pattern(tag, size))
    return tensors


@pytest.fixture
def source(models: Path) -> Path:
    path = models / "llama.safetensors"
    path.write_bytes(safetensors_bytes(llama()))
    return path


def cut(path: Path, rank: int) -> dict[str, torch.Tensor]:
    """Return a rank's slices as the safetensors library cuts them."""
    found = {}
    with safetensors.safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            part = file.get_slice(name)
            shape = part.get_shape()
            if name.endswith(("q_proj.weight", "q_proj.bias", "up_proj.weight", "embed_tokens.weight")):
                step = shape[0] // WORLD
                found[name] = part[rank * step : (rank + 1) * step] if 0 not in shape else torch.empty(step, 0)
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                step = shape[1] // WORLD
                found[name] = part[:, rank * step : (rank + 1) * step]
            else:
                found[name] = file.get_tensor(name)
    return found


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("transport", ["mapped", "streamed"])
def test_every_rank_gets_what_the_reference_cuts(shared: Daemon, source: Path, transport: str) -> None:
    address = shared.address if transport == "mapped" else shared.tcp_address
    with warmshelf.connect(address) as shelf:
        shelf.register("llama", source)
        for rank in range(WORLD):
            expected = cut(source, rank)
            with shelf.acquire("llama", shard=Shard(rank, WORLD)) as lease:
                assert lease.transport == transport
                tensors, arrays = warmshelf.torch.tensors(lease), warmshelf.numpy.arrays(lease)
                assert tensors.keys() == expected.keys() == set(lease)
                for name, tensor in expected.items():
                    assert tuple(tensors[name].shape) == tuple(tensor.shape) == lease.specs[name].shape
                    assert raw(tensors[name]) == raw(tensor) == bytes(lease[name]), name
                    assert arrays[name].tobytes() == raw(tensor), name


def test_a_mapped_slice_is_no_copy_and_what_is_written_stays_with_its_lease(shared: Daemon, source: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    with warmshelf.connect(shared.address) as shelf:
        shelf.register("llama", source)
        with shelf.acquire("llama", shard=Shard(1, WORLD)) as lease, shelf.acquire("llama") as other:
            tensor = warmshelf.torch.tensors(lease)[name].view(torch.uint8)
            assert not tensor.is_contiguous()
            before = bytes(other[name])
            tensor[0, 0] ^= 255
            spec = lease.specs[name]
            assert lease.segment_view[spec.offset_bytes] == tensor[0, 0]
            assert bytes(other[name]) == before


def test_a_streamed_rank_moves_its_slices_and_little_else(shared: Daemon, source: Path, tmp_path: Path) -> None:
    with warmshelf.connect(shared.tcp_address) as shelf:
        shelf.register("llama", source)
        with shelf.acquire("llama", shard=Shard(0, WORLD)) as lease:
            size = sum(spec.size_bytes for spec in lease.specs.values())
            assert len(lease.segment_view) < size + 64 * len(lease)
            assert size < source.stat().st_size / WORLD + 4096


@pytest.mark.parametrize("transport", ["mapped", "streamed"])
def test_tensors_arrive_layer_by_layer_and_stay_valid(shared: Daemon, source: Path, transport: str) -> None:
    address = shared.address if transport == "mapped" else shared.tcp_address
    expected = llama()
    with warmshelf.connect(address) as shelf:
        shelf.register("llama", source)
        arriving = shelf.stream_tensors("llama")
        first, first_bytes = next(arriving)
        assert [info.artifact_id for info in shelf.leases("llama")] == ["llama"]
        found = {first.name: first_bytes, **{spec.name: data for spec, data in arriving}}
        assert shelf.leases("llama") == []
        layers = [name.split(".")[2] for name in found if name.startswith("model.layers")]
        assert layers == sorted(layers)
        assert {name: bytes(data) for name, data in found.items()} == {n: data for n, (_, _, data) in expected.items()}


def test_an_iterator_that_is_dropped_midway_ends_its_lease(shared: Daemon, source: Path) -> None:
    with warmshelf.connect(shared.tcp_address) as shelf:
        shelf.register("llama", source)
        arriving = shelf.stream_tensors("llama")
        next(arriving)
        arriving.close()  # type: ignore[attr-defined]
        assert shelf.leases("llama") == []


@pytest.mark.parametrize("transport", ["mapped", "streamed"])
def test_a_rule_that_does_not_divide_is_refused_and_leaves_no_lease(
    shared: Daemon, source: Path, transport: str
) -> None:
    address = shared.address if transport == "mapped" else shared.tcp_address
    with warmshelf.connect(address) as shelf:
        shelf.register("llama", source)
        with pytest.raises(InvalidRequest) as caught:
            shelf.acquire("llama", shard=Shard(0, 7))
        assert "7 ranks do not divide" in str(caught.value)
        assert shelf.leases("llama") == []


def test_an_evicted_artifact_is_sharded_by_its_id_alone_also_after_a_restart(running: Daemon, source: Path) -> None:
    with running.connect() as shelf:
        shelf.register("llama", source)
        with shelf.acquire("llama", shard=Shard(2, WORLD)) as lease:
            expected = {name: bytes(lease[name]) for name in lease}
        shelf.evict("llama")
        running.kill()
        running.start("--budget", "256MiB")
        with shelf.acquire("llama", shard=Shard(2, WORLD)) as lease:
            assert {name: bytes(lease[name]) for name in lease} == expected


def test_rules_of_ones_own_split_any_dimension(shared: Daemon, models: Path) -> None:
    experts: dict[str, Tensor] = {"experts": ("U8", (4, 6, 8), pattern(1, 192))}
    (models / "moe.safetensors").write_bytes(safetensors_bytes(experts))
    rules = (Rule("experts", 2),)
    whole = torch.frombuffer(bytearray(experts["experts"][2]), dtype=torch.uint8).reshape(4, 6, 8)
    for address in (shared.address, shared.tcp_address):
        with warmshelf.connect(address) as shelf:
            shelf.register("moe", models / "moe.safetensors")
            ranks = [
                warmshelf.torch.tensors(shelf.acquire("moe", shard=Shard(rank, 2, rules)))["experts"] for rank in (0, 1)
            ]
            assert torch.equal(torch.cat(ranks, dim=2), whole)


def request_of(plain: Plain, lease_id: str, slices: list[tuple[int, int, int, int]], offset: int = 0) -> object:
    names = ("tensor_index", "dim", "start", "stop")
    return plain.transfer.ReadTensors(
        transfer_pb2.ReadTensorsRequest(
            lease_id=lease_id,
            session_id=plain.session_id,
            slices=[transfer_pb2.TensorSlice(**dict(zip(names, one, strict=True))) for one in slices],
            offset_bytes=offset,
        ),
        timeout=20,
    )


def test_a_read_of_slices_resumes_at_any_byte(shared: Daemon, source: Path) -> None:
    with Plain(shared.tcp_address) as plain:
        plain.register("llama", source)
        lease_id = plain.acquire("llama").lease.lease_id
        layout = transfer_pb2.ReadLayoutRequest(lease_id=lease_id, session_id=plain.session_id)
        names = [t.name for part in plain.transfer.ReadLayout(layout, timeout=20) for t in part.layout.tensors]
        embedding, down = names.index("model.embed_tokens.weight"), names.index("model.layers.1.mlp.down_proj.weight")
        slices = [(embedding, 0, 3, 900), (down, 1, 100, 612), (names.index("scale"), -1, 0, 0)]
        whole = b"".join(chunk.data for chunk in request_of(plain, lease_id, slices))  # type: ignore[attr-defined]
        for offset in (0, 1, 63, 64, 1 << 20, (1 << 20) + 1, len(whole) - 1, len(whole)):
            rest = b"".join(
                chunk.data
                for chunk in request_of(plain, lease_id, slices, offset)  # type: ignore[attr-defined]
            )
            assert rest == whole[offset:]
        with refused(grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"):
            list(request_of(plain, lease_id, slices, len(whole) + 1))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "forged",
    [
        [(10_000, -1, 0, 0)],
        [(-1, -1, 0, 0)],
        [(0, 7, 0, 1)],
        [(0, 0, 5, 2)],
        [(0, 0, 0, 2**62)],
        [(0, -1, 0, 0)] * 32_769,
    ],
)
def test_forged_slices_are_refused_and_move_nothing(
    shared: Daemon, source: Path, forged: list[tuple[int, int, int, int]]
) -> None:
    with Plain(shared.tcp_address) as plain:
        plain.register("llama", source)
        lease_id = plain.acquire("llama").lease.lease_id
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
            list(request_of(plain, lease_id, forged))  # type: ignore[call-overload]
        assert list(request_of(plain, lease_id, [])) == []  # type: ignore[call-overload]

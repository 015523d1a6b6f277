"""Tensors arrive as they were: dtypes, shapes, ties and bits; and what one worker writes is its own."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

import pytest

import warmshelf
from kit.models import Tensor, filled, pattern, safetensors_bytes, write_model, write_shards
from kit.processes import Daemon, Worker, read_all
from warmshelf import errors

torch = pytest.importorskip("torch")


@contextmanager
def leased(daemon: Daemon, artifact_id: str) -> Iterator[list[warmshelf.Lease]]:
    """Lease an artifact twice, mapped and streamed."""
    with (
        daemon.connect() as mapping,
        warmshelf.connect(daemon.tcp_address) as streaming,
        mapping.acquire(artifact_id, timeout=20) as one,
        streaming.acquire(artifact_id, timeout=20) as other,
    ):
        assert (one.transport, other.transport) == ("mapped", "streamed")
        yield [one, other]


def serve(daemon: Daemon, models: Path, tensors: Mapping[str, Tensor], artifact_id: str = "m") -> None:
    path = models / f"{artifact_id}.safetensors"
    path.write_bytes(safetensors_bytes(tensors))
    with daemon.connect() as shelf:
        shelf.register(artifact_id, path)


def assert_equal(lease: warmshelf.Lease, tensors: Mapping[str, Tensor]) -> None:
    assert {n: (s.dtype, s.shape, bytes(lease[n])) for n, s in lease.specs.items()} == dict(tensors)


# --- B22: bf16 ---------------------------------------------------------------

BF16_PATTERNS = [
    *(0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x807F, 0x0080),  # zeros, subnormals, the smallest normal
    *(0x7F80, 0xFF80, 0x7F7F, 0xFF7F),  # infinities, the largest
    *(0x7FC0, 0xFFC0, 0x7F81, 0xFFFF, 0x7FAB),  # quiet and signalling NaNs with payloads
    *(0x3F80, 0xBF80, 0x3F81),
]


def test_bf16_arrives_as_the_same_16_bit_patterns(shared: Daemon, models: Path) -> None:
    """B22: NaN payloads, -0.0, subnormals and infinities; an odd number of elements between others."""
    assert len(BF16_PATTERNS) % 2 == 1
    data = struct.pack(f"<{len(BF16_PATTERNS)}H", *BF16_PATTERNS)
    tensors = {"x": ("BF16", (len(BF16_PATTERNS),), data), "odd": ("BF16", (1, 3), data[:6]), "f": filled(1, 7)["w"]}
    serve(shared, models, tensors)
    with leased(shared, "m") as leases:
        for lease in leases:
            assert_equal(lease, tensors)
            assert lease.specs["x"].size_bytes == 2 * len(BF16_PATTERNS)
            x = warmshelf.torch.tensors(lease)["x"]
            assert x.dtype is torch.bfloat16
            assert [bits & 0xFFFF for bits in x.view(torch.int16).tolist()] == BF16_PATTERNS
            array = warmshelf.numpy.arrays(lease)["x"]
            assert (array.dtype.str, array.tolist()) == ("<u2", BF16_PATTERNS)


# --- B25: scalars and nothing ------------------------------------------------

SMALL: dict[str, tuple[int, ...]] = {"s": (), "e": (0, 4), "e2": (0,), "a": (3,)}


@pytest.mark.parametrize(("dtype", "width"), [("BF16", 2), ("F8_E4M3", 1), ("F64", 8), ("BOOL", 1)])
def test_scalars_and_tensors_without_elements_survive_in_every_place(
    shared: Daemon, models: Path, dtype: str, width: int
) -> None:
    """B25: first, last and alone; mapped and streamed, as bytes, in torch and in numpy."""
    orders = [list(order) for order in permutations(SMALL)] + [[name] for name in SMALL] + [["e", "e2"]]
    for number, order in enumerate(orders):
        serve(shared, models, {name: tensor_of(dtype, width, SMALL[name]) for name in order}, f"m{number}")
    for number, order in enumerate(orders):
        with leased(shared, f"m{number}") as leases:
            for lease in leases:
                assert_equal(lease, {name: tensor_of(dtype, width, SMALL[name]) for name in order})
                for name, tensor in warmshelf.torch.tensors(lease).items():
                    assert tuple(tensor.shape) == SMALL[name]
                    assert tensor.element_size() == width
                for name, array in warmshelf.numpy.arrays(lease).items():
                    assert array.shape == SMALL[name]


def tensor_of(dtype: str, width: int, shape: tuple[int, ...]) -> Tensor:
    count = 1
    for dim in shape:
        count *= dim
    return dtype, shape, b"\x01" * count * width


# --- B12: tied weights -------------------------------------------------------


def test_a_name_that_is_absent_because_it_is_tied_is_not_missing(shared: Daemon, models: Path) -> None:
    """B12: a base saved without lm_head, as one file and in shards, loads and says in its config that it is tied."""
    config = json.dumps({"tie_word_embeddings": True})
    embed: dict[str, Tensor] = {"model.embed_tokens.weight": ("BF16", (8, 4), pattern(1, 64))}
    norm: dict[str, Tensor] = {"model.norm.weight": ("BF16", (4,), pattern(2, 8))}
    (models / "one").mkdir()
    (models / "one" / "model.safetensors").write_bytes(safetensors_bytes({**embed, **norm}))
    write_shards(models / "many", [embed, norm])
    for name in ("one", "many"):
        (models / name / "config.json").write_text(config)
        with shared.connect() as shelf:
            shelf.register(name, models / name)
        with leased(shared, name) as leases:
            for lease in leases:
                assert_equal(lease, {**embed, **norm})
                assert lease.config["tie_word_embeddings"] is True


def test_what_safetensors_itself_saves_of_a_tied_model_is_served_whole(shared: Daemon, models: Path) -> None:
    """B12: the library keeps one of two names and notes the other in the file's metadata."""
    safetensors_torch = pytest.importorskip("safetensors.torch")
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(6, 4), "head": torch.nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["embed"].weight
    safetensors_torch.save_model(model, str(models / "tied.safetensors"))
    kept = safetensors_torch.load_file(str(models / "tied.safetensors"))
    assert len(kept) == 1
    with shared.connect() as shelf:
        shelf.register("tied", models / "tied.safetensors")
    with leased(shared, "tied") as leases:
        for lease in leases:
            tensors = warmshelf.torch.tensors(lease)
            assert tensors.keys() == kept.keys()
            model.load_state_dict(dict.fromkeys(("embed.weight", "head.weight"), *tensors.values()))
            assert torch.equal(model["head"].weight, *kept.values())


def test_two_names_on_one_range_of_a_file_are_refused_as_the_library_refuses_them(shared: Daemon, models: Path) -> None:
    """B12, B20: the format has no ties; what looks like one is an overlap."""
    header = {name: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for name in ("embed", "lm_head")}
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + b"\1\2\3\4"
    (models / "m.safetensors").write_bytes(content)
    with shared.connect() as shelf, pytest.raises(errors.MalformedArtifact, match="overlaps"):
        shelf.register("m", models / "m.safetensors")
    library = pytest.importorskip("safetensors")
    with pytest.raises(library.SafetensorError):
        library.deserialize(content)


# --- B45: what a worker writes is its own ------------------------------------


def scale_by_torch(lease: warmshelf.Lease) -> None:
    for tensor in warmshelf.torch.tensors(lease).values():
        tensor.mul_(2)


def clear_by_numpy(lease: warmshelf.Lease) -> None:
    for array in warmshelf.numpy.arrays(lease).values():
        array[...] = 0


def overwrite_by_view(lease: warmshelf.Lease) -> None:
    for name in lease:
        lease[name][:] = b"\xff" * len(lease[name])


@pytest.mark.parametrize("write", [scale_by_torch, clear_by_numpy, overwrite_by_view])
def test_what_a_worker_writes_into_its_tensors_stays_its_own(
    shared: Daemon, models: Path, write: Callable[[warmshelf.Lease], None]
) -> None:
    """B45, B12: in one process and others, before and after; the sealed file keeps its bytes."""
    values = struct.pack("<512f", *map(float, range(1, 513)))
    tensors: dict[str, Tensor] = {"lora_B": ("F32", (16, 32), values), "lm_head": ("F32", (512,), values)}
    serve(shared, models, tensors)
    with leased(shared, "m") as before, shared.connect() as shelf, shelf.acquire("m", timeout=20) as mine:
        sealed = digest_of_segment(shared)
        write(mine)
        assert bytes(mine["lora_B"]) != values
        with leased(shared, "m") as after, shelf.acquire("m", timeout=20) as again:
            for lease in (*before, *after, again):
                assert_equal(lease, tensors)
        write(before[1])
        with leased(shared, "m") as after:
            for lease in after:
                assert_equal(lease, tensors)
        assert digest_of_segment(shared) == sealed


WRITER = """
import sys, warmshelf
shelf = warmshelf.connect(sys.argv[1])
lease = shelf.acquire("m", timeout=20)
view = lease["lora_B"]
view[:] = bytes(len(view))
print(sum(lease["lora_B"]), flush=True)
sys.stdin.readline()
"""


def test_the_writes_of_another_process_are_seen_by_nobody_and_are_gone_with_it(
    shared: Daemon, models: Path, start_worker: Callable[..., Worker]
) -> None:
    """B45: also after the writer has gone and the artifact was evicted and loaded again."""
    tensors: dict[str, Tensor] = {"lora_B": ("U8", (1 << 20,), pattern(7, 1 << 20))}
    serve(shared, models, tensors)
    worker = start_worker(WRITER, shared.address)
    assert worker.line() == "0"
    with leased(shared, "m") as leases:
        for lease in leases:
            assert_equal(lease, tensors)
    worker.tell()
    assert worker.wait() == 0
    with shared.connect() as shelf:
        shelf.evict("m")
    with leased(shared, "m") as leases:
        for lease in leases:
            assert_equal(lease, tensors)


def digest_of_segment(daemon: Daemon) -> str:
    (segment,) = daemon.segments()
    return hashlib.sha256((daemon.arena / segment).read_bytes()).hexdigest()


# --- B17: what is known of a base, and from where ----------------------------


def test_nothing_is_looked_up_on_the_network_because_of_a_config(daemon: Daemon, models: Path) -> None:
    """B17: a base's config names places that are gone or hostile; only the files given count."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        where = f"http://127.0.0.1:{trap.getsockname()[1]}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_ENDPOINT"), where)
        proxies |= {name.lower(): value for name, value in proxies.items()}
        daemon.start(env=proxies)
        fields = ("_name_or_path", "base_model_name_or_path", "auto_map", "tokenizer_class", "model_id")
        for number, value in enumerate((f"{where}/model", "meta-llama/gone", None, "/home/trainer/run-7", "../x")):
            directory = models / f"base{number}"
            tensors = write_model(directory / "model.safetensors", number)
            config = json.dumps(dict.fromkeys(fields, value)).encode()
            (directory / "config.json").write_bytes(config)
            with daemon.connect() as shelf:
                shelf.register(f"base{number}", directory)
                with shelf.acquire(f"base{number}", timeout=20) as lease:
                    assert read_all(lease) == tensors
                    assert lease.config_json == config
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_names_and_shapes_of_a_base_are_known_after_registration_and_travel(shared: Daemon, models: Path) -> None:
    """B17: what an adapter will be compared with: counted when registered, in full with the bytes."""
    tensors: dict[str, Tensor] = {
        "model.layers.0.q_proj.weight": ("BF16", (8, 8), pattern(1, 128)),
        "model.layers.0.norm.weight": ("F32", (8,), pattern(2, 32)),
        "model.layers.1.q_proj.weight": ("BF16", (8, 16), pattern(3, 256)),
    }
    shards = [dict([item]) for item in tensors.items()]
    paths = write_shards(models / "base", shards)
    with shared.connect() as shelf:
        inspection = shelf.register("base", models / "base").inspection
        assert inspection is not None
        assert (inspection.tensor_count, inspection.tensor_bytes) == (3, 416)
        assert inspection.file_names == tuple(path.name for path in paths)
        assert shelf.get("base").inspection == inspection
        assert shared.segments() == []
    with leased(shared, "base") as leases:
        for lease in leases:
            assert {name: spec.shape for name, spec in lease.specs.items()} == {n: t[1] for n, t in tensors.items()}
            assert lease.artifact.inspection == inspection

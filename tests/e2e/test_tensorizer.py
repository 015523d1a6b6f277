"""`.tensors` files, written by the tensorizer library itself, through the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensorizer import TensorSerializer

import warmshelf.torch
from kit.processes import Daemon, eventually
from warmshelf import ArtifactState, errors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def write_tensors(path: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    state = {
        "embed.weight": torch.randn(300, 64).to(torch.bfloat16),
        "layer.weight": torch.randn(64, 64),
        "layer.scale": torch.tensor(2.5, dtype=torch.float64),
        "mask": torch.tensor([True, False, True]),
    }
    serializer = TensorSerializer(str(path))
    serializer.write_state_dict(state)
    serializer.close()
    return state


def flip(path: Path, place: bytes) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(place)
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_tensors_file_is_acquired_bit_for_bit(running: Daemon, models: Path) -> None:
    state = write_tensors(models / "a.tensors")
    with running.connect() as shelf:
        artifact = shelf.register("a", f"file://{models}/a.tensors")
        assert artifact.inspection is not None
        assert (artifact.inspection.format_name, artifact.inspection.tensor_count) == ("tensorizer", len(state))
        with shelf.acquire("a", timeout=20) as lease:
            tensors = warmshelf.torch.tensors(lease)
            assert tensors.keys() == state.keys()
            for name, tensor in state.items():
                assert tensors[name].dtype == tensor.dtype
                assert torch.equal(tensors[name], tensor)
        eventually(lambda: shelf.get("a").digest != "", "the digest is known")


def test_a_flipped_bit_is_found_and_the_good_file_loads_at_once(running: Daemon, models: Path) -> None:
    """B19: tensorizer itself loads such a file without a word."""
    state = write_tensors(models / "a.tensors")
    good = (models / "a.tensors").read_bytes()
    with running.connect() as shelf:
        flip(models / "a.tensors", state["layer.weight"].numpy().tobytes()[:64])
        shelf.register("a", f"file://{models}/a.tensors")
        with pytest.raises(errors.DigestMismatch, match=r"layer\.weight"):
            shelf.acquire("a", timeout=20)
        assert shelf.get("a").state is ArtifactState.FAILED
        assert running.segments() == []
        (models / "a.tensors").write_bytes(good)
        shelf.register("a", f"file://{models}/a.tensors", replace=True)
        shelf.acquire("a", timeout=20).release()


def test_a_cut_file_is_refused_at_registration_with_both_sizes(running: Daemon, models: Path) -> None:
    """B19: cut inside the data, inside the header, and empty."""
    write_tensors(models / "a.tensors")
    whole = (models / "a.tensors").read_bytes()
    with running.connect() as shelf:
        for size in (len(whole) - 1, len(whole) // 2, 100, 0):
            (models / "cut.tensors").write_bytes(whole[:size])
            with pytest.raises(errors.WarmshelfError) as caught:
                shelf.register(f"cut{size}", f"file://{models}/cut.tensors")
            assert caught.value.reason in ("SOURCE_TRUNCATED", "MALFORMED_ARTIFACT")
        assert list(shelf.list()) == []


def test_equal_content_of_two_formats_is_one_content(running: Daemon, models: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    state = write_tensors(models / "a.tensors")
    save_file(state, models / "b.safetensors")
    with running.connect() as shelf:
        for name, file in (("a", "a.tensors"), ("b", "b.safetensors")):
            shelf.register(name, f"file://{models}/{file}")
            shelf.acquire(name, timeout=20).release()
        eventually(lambda: len(running.segments()) == 1, "held once")
        assert shelf.get("a").digest == shelf.get("b").digest

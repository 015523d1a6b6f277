"""A lease's tensors on a real CUDA device: bits, by every way there is. Without one each test skips and says so."""

from __future__ import annotations

import pytest
import torch

import warmshelf.torch
from kit.models import pattern, safetensors_bytes
from kit.processes import Daemon
from warmshelf._cuda import CudaRuntime
from warmshelf.errors import FeatureUnsupported

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")

MIB = 1 << 20
TENSORS = {
    "large": ("BF16", (75 * MIB,), pattern(1, 150 * MIB)),  # more than two slots
    "small": ("F32", (3, 5), pattern(2, 60)),
    "empty": ("F32", (0, 4), b""),
}


def check(found: dict[str, torch.Tensor]) -> None:
    for name, (_, shape, data) in TENSORS.items():
        assert found[name].is_cuda
        assert tuple(found[name].shape) == shape
        expected = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        assert torch.equal(found[name].cpu().flatten().view(torch.uint8), expected)


@pytest.fixture
def registered(running: Daemon) -> Daemon:
    (running.models / "base.safetensors").write_bytes(safetensors_bytes(TENSORS))
    with running.connect(timeout=60) as shelf:
        shelf.register("base", running.models / "base.safetensors")
    return running


def test_through_the_ring_every_bit_comes(registered: Daemon) -> None:
    with registered.connect(timeout=60) as shelf, shelf.acquire("base", writable=False) as lease:
        check(warmshelf.torch.to_device(lease, "cuda"))


def test_streamed_over_tcp_every_bit_comes(registered: Daemon) -> None:
    with warmshelf.connect(registered.tcp_address, timeout=60) as shelf:
        check(warmshelf.torch.stream_to_device(shelf, "base", "cuda"))


def test_from_a_registered_mapping_every_bit_comes_or_the_device_says_no(registered: Daemon) -> None:
    with registered.connect(timeout=60) as shelf, shelf.acquire("base", writable=False) as lease:
        if CudaRuntime(torch.device("cuda")).registers_read_only():
            check(warmshelf.torch.to_device(lease, "cuda", register=True))
        else:
            with pytest.raises(FeatureUnsupported, match="mapped read-only"):
                warmshelf.torch.to_device(lease, "cuda", register=True)
        torch.cuda.synchronize()  # a refusal does not come up again
        check(warmshelf.torch.to_device(lease, "cuda"))

"""Whether a GPU of this node copies straight out of mapped memory.

Only looks where torch and CUDA's driver are; elsewhere there is nothing to say.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from warmshelf.doctor.finding import Finding, Level

PROBE_BYTES = 2 << 20
"""One huge page."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a GPU can do.

    Attributes:
        name: what torch calls it.
        registers_read_only: whether its driver takes memory that is mapped read-only.
        refusal: why a mapping could not be registered; "" if it could.
    """

    name: str
    registers_read_only: bool
    refusal: str


def look() -> Device | None:
    """Register a small mapping with the first GPU; None without torch and CUDA."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if importlib.util.find_spec("torch") is None:
        return None
    import torch  # noqa: PLC0415 - takes seconds, and only a node with a GPU needs it

    return _try(torch.device("cuda", 0)) if torch.cuda.is_available() else None


def _try(device: object) -> Device:
    import torch  # noqa: PLC0415

    from warmshelf._cuda import CudaRuntime  # noqa: PLC0415

    name = torch.cuda.get_device_name(device)
    runtime = CudaRuntime(device)
    with mmap.mmap(-1, PROBE_BYTES) as memory:
        first = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(first)
        try:
            runtime.register(address, PROBE_BYTES)
            runtime.unregister(address)
        except RuntimeError as error:
            return Device(name, registers_read_only=runtime.registers_read_only(), refusal=str(error))
        finally:
            del first  # or the mapping cannot be undone
    return Device(name, registers_read_only=runtime.registers_read_only(), refusal="")


def judge(device: Device | None) -> Iterator[Finding]:
    """Yield what there is to say of a GPU."""
    if device is None:
        return
    if device.registers_read_only and not device.refusal:
        yield Finding("gpu-registration", Level.OK, f"{device.name} copies straight out of mapped segments")
        return
    why = device.refusal or "its driver takes no memory that is mapped read-only"
    text = f"{device.name} cannot register mapped segments: {why}; uploads go through a ring of pinned memory"
    yield Finding("gpu-registration", Level.NOTE, text, "nothing has to be done; a newer driver may allow it")

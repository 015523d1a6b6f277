"""CUDA as ``_device_ring.py`` needs it: torch's, and what of the driver torch has not.

Knows no tensors of a lease and decides nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_READ_ONLY_FLAG = 0x08
"""``CU_MEMHOSTREGISTER_READ_ONLY``."""

_READ_ONLY_ATTRIBUTE = 113
"""``CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED``."""


class CudaRuntime:
    """One CUDA device and a stream of its own beside the current one; see ``_device_ring.Runtime``."""

    def __init__(self, device: torch.device) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._current = torch.cuda.current_stream(self._device)
        self._stream = torch.cuda.Stream(self._device)
        self._driver = ctypes.CDLL("libcuda.so.1")

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Return memory of the device, which what runs there before may still use: copies wait for that."""
        block = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
        self._stream.wait_stream(self._current)
        return block

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Return page-locked memory; torch keeps it for the next call."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin a copy on the stream."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def wait(self, event: Any) -> None:
        """Wait for an event."""
        event.synchronize()

    def finish(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def registers_read_only(self) -> bool:
        """Ask the driver."""
        device, found = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), self._device.index)
        self._call("cuDeviceGetAttribute", ctypes.byref(found), _READ_ONLY_ATTRIBUTE, device)
        return bool(found.value)

    def register(self, address: int, size_bytes: int) -> None:
        """Register memory to be read only."""
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), _READ_ONLY_FLAG)

    def unregister(self, address: int) -> None:
        """Take that back."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def _call(self, name: str, *arguments: Any) -> None:
        """Call the driver, not CUDA's runtime, where an error that we handle would come up again in another call."""
        with torch.cuda.device(self._device):
            status = getattr(self._driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUresult {status}")

"""warmshelfd: the daemon that keeps model weights and LoRA adapters in host memory."""

from __future__ import annotations

__version__ = "0.1.0"

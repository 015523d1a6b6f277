"""warmshelfd: the daemon that keeps model weights and LoRA adapters in host memory."""

from __future__ import annotations

import os

__version__ = "0.1.0"

# gRPC reads this when it is imported. Else every stranger whose handshake fails writes a line into our log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

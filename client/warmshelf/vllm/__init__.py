"""warmshelf as a plugin of vLLM: base weights and LoRA adapters by ID, out of the shelf's memory.

vLLM calls ``register`` in each of its processes, more than once and before it forks. So nothing
here opens a connection: each process does, at its first use. Importing this module needs
neither vLLM nor torch.
"""

from __future__ import annotations

from typing import Any

from warmshelf.client import Shelf


def register() -> None:
    """Tell vLLM of the load format, the adapter resolver and the adapters' paths. May be called again."""
    from warmshelf.vllm import adapters, loader, resolver  # noqa: PLC0415 - they need vLLM

    adapters.install()
    loader.install()
    resolver.install()


def lora_request(artifact_id: str, *, shelf: Shelf | None = None) -> Any:
    """Return the LoRARequest for an adapter as it is now, for an engine that this process started.

    A server needs none: there ``model=<ID>`` of a request is resolved. It is made resident
    now, so that the engine does not wait for its source. The request names one generation; ask again
    to have the adapter's next one. Equal names have equal numbers, and no two share one, in this process.

    Args:
        artifact_id: the adapter.
        shelf: where it is; by default that of WARMSHELF_ADDRESS, which the engine uses too.

    Raises:
        FeatureUnsupported: it needs what vLLM does not honour.
        WarmshelfError: as ``Shelf.acquire``.
    """
    from warmshelf.vllm import resolver  # noqa: PLC0415 - it needs vLLM

    return resolver.request_for(artifact_id, shelf)

"""What engines call an adapter: its ID, and which generation of it. Pure.

vLLM keys its prefix cache by an adapter's name and path, and all ranks of an SGLang must read one generation. Name
and path carry the generation and the digest here, so that what was computed with other weights is never found: not
after a replacement, and not after a removal that began the counting anew. No ID has a ``#`` in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warmshelf.errors import Internal, InvalidRequest
from warmshelf.types import Artifact, check_id

ADAPTER_ROOT = "/run/warmshelf/adapters/"
"""Begins the path of every adapter on the shelf. Nothing needs to be there."""

_SHOWN_DIGITS = 16
"""Of the digest, in names: 64 bits keep the few contents of one ID apart."""

_DIGEST_PREFIX = "blake3:"
_PATH = re.compile(re.escape(ADAPTER_ROOT) + r"(?P<id>[^#]+)#(?P<generation>[0-9]{1,10})-(?P<digest>[0-9a-f]{64})")
_NAME = re.compile(r"(?P<id>[^#]+)#[0-9]{1,10}-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class AdapterName:
    """One generation of an adapter."""

    artifact_id: str
    generation: int
    digest: str

    @property
    def name(self) -> str:
        """What requests and the prefix cache call it."""
        return f"{self.artifact_id}#{self.generation}-{self._digits[:_SHOWN_DIGITS]}"

    @property
    def path(self) -> str:
        """Where an engine is told that it lies."""
        return f"{ADAPTER_ROOT}{self.artifact_id}#{self.generation}-{self._digits}"

    @property
    def _digits(self) -> str:
        return self.digest.removeprefix(_DIGEST_PREFIX)


def name_of(artifact: Artifact) -> AdapterName:
    """Return the name of what is READY now."""
    if not artifact.digest.startswith(_DIGEST_PREFIX):
        raise Internal(f"adapter {artifact.artifact_id!r} is READY without a digest")
    return AdapterName(artifact.artifact_id, artifact.generation, artifact.digest)


def parse_path(path: str) -> AdapterName | None:
    """Return which adapter a path means; None for one that is not the shelf's.

    Raises:
        InvalidRequest: it is the shelf's, and says no generation.
    """
    if not path.startswith(ADAPTER_ROOT):
        return None
    found = _PATH.fullmatch(path)
    if found is None:
        raise InvalidRequest(
            f"{path!r} names no generation of an adapter: use its ID, which the engine's plugin resolves", path=path
        )
    return AdapterName(check_id(found["id"]), int(found["generation"]), _DIGEST_PREFIX + found["digest"])


def id_in(name: str) -> str:
    """Return the ID in what a request calls an adapter: the ID alone, or the whole name of a generation."""
    found = _NAME.fullmatch(name)
    return found["id"] if found else name

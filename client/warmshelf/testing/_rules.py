"""What a FakeShelf refuses, and with which error. Pure; a daemon has more rules than these."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warmshelf.errors import (
    ArenaFull,
    DigestMismatch,
    FeatureUnsupported,
    InvalidSpec,
    LargerThanArena,
    Leased,
    NotResident,
    RankTooLarge,
    SourceChanged,
    SpecMismatch,
)
from warmshelf.testing._content import Content, same
from warmshelf.types import Artifact, ArtifactKind, ArtifactSpec

PUSHED = "spool://"
"""What the source of a pushed artifact begins with."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to register; see ``Shelf.register``."""

    replace: bool = False
    follow: bool = False
    keep: bool = False
    defer: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker asks for; see ``Shelf.acquire``. ``features`` None: anything."""

    resident_only: bool = False
    expected_digest: str = ""
    rank_max: int = 0
    features: tuple[str, ...] | None = None


def check_spec(known: Artifact, spec: ArtifactSpec, options: Options) -> None:
    """Refuse another spec for a known ID."""
    if spec != known.spec and not options.replace:
        raise SpecMismatch(f"{known.artifact_id!r} is registered with another spec", artifact_id=known.artifact_id)


def check_kind(artifact_id: str, spec: ArtifactSpec, content: Content | None) -> None:
    """Refuse a base that is said to be an adapter, and an adapter that is said to be its own base."""
    if spec.base_id == artifact_id:
        raise InvalidSpec(f"{artifact_id!r} cannot be its own base", artifact_id=artifact_id)
    if content is not None and spec.base_id and content.kind is not ArtifactKind.ADAPTER:
        raise InvalidSpec(f"the spec says adapter, the source is a {content.kind.value}")


def is_pushed_alike(known: Artifact, old: Content | None, spec: ArtifactSpec, content: Content) -> bool:
    """Say whether an ID was pushed before with equal content and the same base."""
    is_pushed = known.spec.source.uri.startswith(PUSHED)
    return is_pushed and known.spec.base_id == spec.base_id and same(old, content)


def check_unchanged(known: Artifact, options: Options, *, is_known: bool) -> None:
    """Refuse other bytes for a known ID, if it is known which it has."""
    if is_known and not (options.replace or options.follow or known.follow):
        raise SourceChanged(
            f"the source of {known.artifact_id!r} holds other bytes than those it was pinned to",
            artifact_id=known.artifact_id,
        )


def check_pinned(artifact: Artifact, *digests: str) -> None:
    """Refuse content with none of the digests that was expected at registration."""
    expected = artifact.spec.source.expected_digest
    if expected and expected not in digests:
        raise _mismatch(artifact, expected, digests[0])


def check_wanted(artifact: Artifact, wanted: Wanted) -> None:
    """Refuse what a worker does not expect, or would serve wrongly."""
    expected = wanted.expected_digest
    if expected and expected not in (artifact.digest, artifact.spec.source.expected_digest):
        raise _mismatch(artifact, expected, artifact.digest)
    adapter = artifact.inspection and artifact.inspection.adapter
    if not adapter:
        return
    if 0 < wanted.rank_max < adapter.rank_max:
        raise RankTooLarge(
            f"the adapter has rank {adapter.rank_max}, the worker takes at most {wanted.rank_max}",
            adapter_rank_max=adapter.rank_max,
            rank_max=wanted.rank_max,
        )
    missing = sorted({*adapter.features} - {*(wanted.features or ())})
    if wanted.features is not None and missing:
        raise FeatureUnsupported(
            f"the adapter needs {', '.join(missing)}, which the worker does not honour", features=", ".join(missing)
        )


def check_fits(size: int, budget_bytes: int) -> None:
    """Refuse what no eviction can make room for."""
    if size > budget_bytes:
        raise LargerThanArena(
            f"{size} bytes can never fit into an arena of {budget_bytes} bytes",
            needed_bytes=size,
            budget_bytes=budget_bytes,
        )


def arena_full(size: int, used_bytes: int, budget_bytes: int) -> ArenaFull:
    """Return the error of a load that found no room in time."""
    return ArenaFull(
        f"{size} bytes are needed, {used_bytes} of {budget_bytes} are in use",
        needed_bytes=size,
        used_bytes=used_bytes,
        budget_bytes=budget_bytes,
    )


def basic(artifact: Artifact) -> Artifact:
    """Return an artifact as listings have it: without config and module names."""
    inspection = artifact.inspection
    if inspection is None or inspection.adapter is None:
        return artifact
    adapter = replace(inspection.adapter, config_json=b"", module_names=(), unmatched_module_names=())
    return replace(artifact, inspection=replace(inspection, adapter=adapter))


def leased(artifact_id: str, holders: int) -> Leased:
    """Return the error of an eviction of what somebody holds."""
    return Leased(f"{artifact_id!r} is held by {holders} leases", artifact_id=artifact_id, lease_count=holders)


def not_resident(artifact: Artifact) -> NotResident:
    """Return the error of a call that wants bytes which are not there."""
    return NotResident(f"{artifact.artifact_id!r} is {artifact.state.value}", artifact_id=artifact.artifact_id)


def _mismatch(artifact: Artifact, expected: str, actual: str) -> DigestMismatch:
    return DigestMismatch(
        f"{artifact.artifact_id!r} has digest {actual or 'unknown'}, expected {expected}",
        artifact_id=artifact.artifact_id,
        expected=expected,
        actual=actual,
    )

"""A fleet of one node: what is resident where, as a daemon tells it that shares its registry with nobody."""

from __future__ import annotations

from collections.abc import Iterable

from warmshelf.types import Artifact, ArtifactState, Node, ResidencyList, Resident

_NODE = Node("0" * 16, "fake")


def resident_in(artifacts: Iterable[Artifact], wanted_id: str) -> ResidencyList:
    """Return which of the artifacts are resident; only one, if an ID is wanted."""
    known = list(artifacts)
    residents = tuple(
        Resident(_NODE, one.artifact_id, one.digest, one.size_bytes, one.pinned, one.keep_resident)
        for one in known
        if one.state is ArtifactState.READY and wanted_id in ("", one.artifact_id)
    )
    is_loading = any(one.state is ArtifactState.LOADING and one.artifact_id == wanted_id for one in known)
    return ResidencyList((_NODE,), residents, loading=(_NODE,) if is_loading else ())

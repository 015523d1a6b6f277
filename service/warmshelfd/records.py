"""Between a catalog entry, what the registry keeps of it, and what callers see of it and of its leases."""

from __future__ import annotations

import dataclasses

from warmshelf.types import Artifact, LeaseInfo
from warmshelfd.domain.catalog import Entry
from warmshelfd.domain.engines import engine_verdicts
from warmshelfd.domain.leases import LeaseRecord
from warmshelfd.registry.base import Registration

_REMEMBERED = (
    "spec",
    "kind",
    "register_time",
    "keep_resident",
    "follow",
    "inspection",
    "adapter_shapes",
    "fingerprint",
    "generation",
    "digest",
    "segment_id",
    "size_bytes",
    "hashes_owed",
    "files_digest",
)


def to_registration(entry: Entry) -> Registration:
    """Return what is to be remembered of an artifact."""
    return Registration(artifact_id=entry.artifact_id, **{name: getattr(entry, name) for name in _REMEMBERED})


def remember(entry: Entry, registration: Registration) -> None:
    """Make an entry say what was remembered."""
    for name in _REMEMBERED:
        setattr(entry, name, getattr(registration, name))


def to_entry(registration: Registration) -> Entry:
    """Return a new entry, REGISTERED, of what was remembered."""
    return Entry(artifact_id=registration.artifact_id, **{name: getattr(registration, name) for name in _REMEMBERED})


def to_artifact(entry: Entry) -> Artifact:
    """Return the artifact as it is now."""
    return Artifact(
        artifact_id=entry.artifact_id,
        spec=entry.spec,
        kind=entry.kind,
        state=entry.state,
        generation=entry.generation,
        size_bytes=entry.size_bytes,
        digest=entry.digest,
        failure=entry.failure,
        inspection=entry.inspection,
        pinned=entry.pinned,
        register_time=entry.register_time,
        last_use_time=entry.last_use_time,
        keep_resident=entry.keep_resident,
        follow=entry.follow,
        sync=entry.sync,
    )


def judged(artifact: Artifact) -> Artifact:
    """Return the artifact with what engines make of it, if it is an adapter."""
    inspection = artifact.inspection
    if inspection is None or inspection.adapter is None:
        return artifact
    adapter = dataclasses.replace(inspection.adapter, engine_verdicts=engine_verdicts(inspection.adapter))
    return dataclasses.replace(artifact, inspection=dataclasses.replace(inspection, adapter=adapter))


def forgotten(known: Registration) -> Registration:
    """Return the registration with nothing of its present bytes."""
    return dataclasses.replace(known, digest="", segment_id="", size_bytes=0, hashes_owed=False, files_digest="")


def merged(now: Registration, known: Registration, wanted: Registration) -> Registration:
    """Return what is wanted of what was known, of an artifact to which other things happened meanwhile.

    What a load found by now is newer than what we saw.
    """
    asked = dataclasses.replace(now, spec=wanted.spec, keep_resident=wanted.keep_resident, follow=wanted.follow)
    if now.fingerprint != known.fingerprint:
        return asked
    return dataclasses.replace(
        asked,
        kind=wanted.kind,
        inspection=wanted.inspection,
        adapter_shapes=wanted.adapter_shapes,
        fingerprint=wanted.fingerprint,
        size_bytes=now.size_bytes or wanted.size_bytes,
    )


def to_lease(record: LeaseRecord, *, secret: bool = False) -> LeaseInfo:
    """Return a lease as callers see it; only its holder sees its ID."""
    lease_id = record.lease_id if secret else ""
    return LeaseInfo(record.artifact_id, record.generation, record.holder, record.acquire_time, lease_id)

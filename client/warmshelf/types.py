"""The nouns of warmshelf, as both sides know them. No gRPC, no protobuf, no I/O.

The values of enumerations are text: ``artifact.state == "ready"`` is true.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from warmshelf._str_enum import StrEnum
from warmshelf.errors import InvalidId, InvalidRequest, WarmshelfError

ID_BYTES_MAX = 255
INT64_MAX = (1 << 63) - 1
"""The largest number of bytes that the wire carries."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]*")


def check_id(artifact_id: str) -> str:
    """Return the ID unchanged if its grammar is right.

    1 to 255 characters of ``[A-Za-z0-9._/@:+-]``, the first a letter or digit, no
    ``..``, no ``//``, no slash at the end. Nothing is folded.

    Raises:
        InvalidId: it is not; says why.
    """
    if not isinstance(artifact_id, str):
        raise InvalidId(f"an artifact ID is a string, not {type(artifact_id).__name__}")
    why = _id_fault(artifact_id)
    if why:
        shown = artifact_id[:64].encode("ascii", "backslashreplace").decode("ascii")
        raise InvalidId(f"artifact ID {shown!r} {why}", length_count=len(artifact_id))
    return artifact_id


def _id_fault(artifact_id: str) -> str:
    if not artifact_id:
        return "is empty"
    if len(artifact_id) > ID_BYTES_MAX:
        return f"has {len(artifact_id)} characters, at most {ID_BYTES_MAX} are allowed"
    if not _ID.fullmatch(artifact_id):
        return "must begin with a letter or digit and hold only letters, digits and ._/@:+-"
    for bad in ("..", "//"):
        if bad in artifact_id:
            return f"contains {bad!r}"
    return "ends with a slash" if artifact_id.endswith("/") else ""


class ArtifactKind(StrEnum):
    """What an artifact is."""

    UNKNOWN = "unknown"
    BASE = "base"
    ADAPTER = "adapter"


class ArtifactState(StrEnum):
    """The life of an artifact, as seen from outside."""

    REGISTERED = "registered"
    LOADING = "loading"
    READY = "ready"
    EVICTING = "evicting"
    FAILED = "failed"


class LoadPhase(StrEnum):
    """A step of a load, in order."""

    INSPECT = "inspect"
    RESERVE = "reserve"
    READ = "read"
    VERIFY = "verify"
    PIN = "pin"
    SEAL = "seal"


class BaseCheck(StrEnum):
    """How far an adapter was compared with its base."""

    UNCHECKED = "unchecked"
    MATCHED = "matched"
    PARTIAL = "partial"


class EngineOutcome(StrEnum):
    """What an engine does with an adapter, from best to worst."""

    SERVES = "serves"
    CONDITIONAL = "conditional"
    UNKNOWN = "unknown"
    MISSERVES = "misserves"
    REFUSES = "refuses"


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """What is known of an engine and an adapter. MISSERVES: it takes it and computes something else."""

    engine: str
    engine_version: str
    outcome: EngineOutcome
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Where bytes come from and which are meant. Carries no secret."""

    uri: str
    revision: str = ""
    expected_digest: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactSpec:
    """What a client registers.

    ``kind`` UNKNOWN means: read it from the source. ``base_id`` is for adapters.
    """

    source: Source
    kind: ArtifactKind = ArtifactKind.UNKNOWN
    base_id: str = ""


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """One of many to register: as the arguments of ``Shelf.register``."""

    artifact_id: str
    source: str
    base: str = ""
    digest: str = ""
    revision: str = ""
    follow: bool = False
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """How one registration of many went; ``error`` says why it was refused."""

    artifact_id: str
    error: WarmshelfError | None = None


@dataclass(frozen=True, slots=True)
class AdapterInspection:
    """What a LoRA adapter's headers and config told.

    ``engine_verdicts`` follow from the rest; ``Shelf.get`` and ``Shelf.register`` have them, listings not.
    """

    adapter_number: int = 0
    rank_max: int = 0
    module_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    base_check: BaseCheck = BaseCheck.UNCHECKED
    unmatched_module_names: tuple[str, ...] = ()
    config_json: bytes = b""
    engine_verdicts: tuple[EngineVerdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the source's headers and config told, before any load."""

    format_name: str = ""
    file_names: tuple[str, ...] = ()
    tensor_count: int = 0
    tensor_bytes: int = 0
    adapter: AdapterInspection | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last load failed, in the words of the error table."""

    reason: str
    message: str
    details: dict[str, str] = field(default_factory=dict)


class SyncState(StrEnum):
    """How far the other nodes of a fleet know of a registration."""

    LOCAL = "local"
    QUEUED = "queued"
    PUBLISHED = "published"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Sync:
    """How far the other nodes of a fleet know of a registration; ``reason`` says what a conflict was about."""

    state: SyncState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Artifact:
    """An immutable set of tensors known under one ID, as it is at one moment."""

    artifact_id: str
    spec: ArtifactSpec
    kind: ArtifactKind = ArtifactKind.UNKNOWN
    state: ArtifactState = ArtifactState.REGISTERED
    generation: int = 0
    size_bytes: int = 0
    digest: str = ""
    failure: Failure | None = None
    inspection: Inspection | None = None
    pinned: bool = False
    register_time: datetime | None = None
    last_use_time: datetime | None = None
    keep_resident: bool = False
    follow: bool = False
    sync: Sync | None = None


@dataclass(frozen=True, slots=True)
class AliasMove:
    """Since when an alias meant an artifact."""

    artifact_id: str
    move_time: datetime


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that means an artifact; ``history`` says what it meant, oldest first, and what it means now."""

    name: str
    history: tuple[AliasMove, ...]

    @property
    def artifact_id(self) -> str:
        """What it means now."""
        return self.history[-1].artifact_id


@dataclass(frozen=True, slots=True)
class Node:
    """One daemon of a fleet.

    Attributes:
        node_id: the same for as long as the daemon keeps its place.
        name: what its operator calls it.
        zone: where it is; "" if nobody said.
        address: IP:PORT at which others reach it; "" if nobody said.
    """

    node_id: str
    name: str
    zone: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Resident:
    """An artifact in the memory of a node; ``digest`` is "" while the node has not computed it."""

    node: Node
    artifact_id: str
    digest: str
    size_bytes: int
    pinned: bool = False
    keep_resident: bool = False


@dataclass(frozen=True, slots=True)
class ResidencyList:
    """What is resident where. A hint: what other nodes have is as they said a moment ago.

    Attributes:
        nodes: all that are there, the one that was asked first.
        residents: node by node, and by ID.
        partial: something is missing: the registry is not in reach, or a node has more than it tells.
        loading: nodes that load the artifact asked for, if one was.
    """

    nodes: tuple[Node, ...]
    residents: tuple[Resident, ...]
    partial: bool = False
    loading: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is; ``artifact`` is set in the last one."""

    phase: LoadPhase
    done_bytes: int = 0
    total_bytes: int = 0
    artifact: Artifact | None = None


class ChangeKind(StrEnum):
    """What a change of a watch tells."""

    CHANGED = "changed"
    REMOVED = "removed"
    COMPLETE = "complete"
    STARTED_OVER = "started_over"
    ALIAS = "alias"
    ALIAS_REMOVED = "alias_removed"


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells of the artifacts known.

    CHANGED: one is new or another than before. REMOVED: one is forgotten. COMPLETE: all that are
    known have been told. ALIAS: one is new or was moved. ALIAS_REMOVED: one is forgotten.
    STARTED_OVER: changes were missed; forget all that was told, it comes anew.

    Attributes:
        sequence: the number to go on after; 0 before a COMPLETE.
        kind: what is told.
        artifact: for CHANGED, as it was when it was told.
        artifact_id: for CHANGED, REMOVED and, as what it means now, ALIAS; the alias for ALIAS_REMOVED.
        alias: for ALIAS.
    """

    sequence: int
    kind: ChangeKind
    artifact: Artifact | None = None
    artifact_id: str = ""
    alias: Alias | None = None


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as listings show it. ``lease_id`` is empty there."""

    artifact_id: str
    generation: int
    holder: str
    acquire_time: datetime | None = None
    lease_id: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a daemon can do; it does not change while it runs.

    ``arena_directory`` is as the daemon sees it; ``arena_identity`` is equal for the same directory seen
    elsewhere on the node. Both are "" from a daemon that does not tell.
    """

    daemon_version: str
    arena_size_bytes: int
    arena_page_size_bytes: int
    pinning: str
    chunk_size_bytes_max: int
    source_schemes: tuple[str, ...]
    format_names: tuple[str, ...]
    arena_directory: str = ""
    arena_identity: str = ""


def check_budget(budget_bytes: int) -> int:
    """Return a budget.

    Raises:
        InvalidRequest: it is none.
    """
    if not 0 < budget_bytes <= INT64_MAX:
        raise InvalidRequest(f"a budget is from 1 to {INT64_MAX} bytes, not {budget_bytes}", budget_bytes=budget_bytes)
    return budget_bytes


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the arena holds, and how much more would fit. Sizes are as the kernel counts them.

    Attributes:
        budget_bytes: all that artifacts may occupy.
        resident_bytes: of bases and adapters that are READY.
        held_bytes: of these, what cannot be evicted now: leased, mapped or kept.
        unnamed_bytes: unlinked, but still mapped by somebody.
        reserved_bytes: promised to loads under way.
        free_bytes: free without evicting anybody.
        fit_free_count: how many like the one asked about fit without evicting; 0 if none was asked about.
        fit_evicting_count: and when everything evictable has gone.
    """

    budget_bytes: int
    resident_bytes: int
    held_bytes: int
    unnamed_bytes: int
    reserved_bytes: int
    free_bytes: int
    fit_free_count: int = 0
    fit_evicting_count: int = 0

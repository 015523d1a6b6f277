"""Where registrations are kept, so that an ID survives eviction and restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from warmshelf.types import Alias, ArtifactKind, ArtifactSpec, Inspection, Sync
from warmshelfd.domain.adapter_shapes import AdapterShapes


@dataclass(frozen=True, slots=True)
class Registration:
    """All that must be remembered of one artifact.

    Attributes:
        artifact_id: its ID.
        spec: as registered, the URI in canonical form.
        kind: as read from the source; UNKNOWN while inspection is deferred.
        register_time: when, in UTC.
        keep_resident, follow: as registered.
        inspection: what the headers told; None while deferred.
        adapter_shapes: what an adapter needs of its base; None for a base, and while deferred.
        fingerprint: how the source looked when its bytes were pinned; "" if never inspected.
        generation: 0 before the first load.
        digest: of this generation; "" until known.
        segment_id: the segment that holds, or held, this generation; "" if never loaded.
        size_bytes: of that segment's file; 0 if not known.
        hashes_owed: the hashes in that segment's manifest are still to be compared with its bytes.
        files_digest: of the small files beside the config, which ``digest`` does not cover, where both were last
            learned together; "" until known.
    """

    artifact_id: str
    spec: ArtifactSpec
    kind: ArtifactKind
    register_time: datetime
    keep_resident: bool = False
    follow: bool = False
    inspection: Inspection | None = None
    adapter_shapes: AdapterShapes | None = None
    fingerprint: str = ""
    generation: int = 0
    digest: str = ""
    segment_id: str = ""
    size_bytes: int = 0
    hashes_owed: bool = False
    files_digest: str = ""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Heard:
    """What other nodes say of an ID.

    Attributes:
        artifact_id: the ID.
        registration: what it is to them; None if they removed it.
        conflict: why what this node made of it was refused; "" if nothing was.
        holds: says whether this is still the latest known of the ID, and nothing that this node made of it
            since waits to be decided. If not, what holds instead is heard by itself.
    """

    artifact_id: str
    registration: Registration | None
    conflict: str = ""
    holds: Callable[[], bool] = _always


class Listener(ABC):
    """Whoever takes up what a registry that nodes share tells. For the event loop's thread."""

    def is_free(self, artifact_id: str) -> bool:  # noqa: ARG002
        """Say whether to ``hear`` of an ID now would wait for nobody."""
        return False

    @abstractmethod
    async def hear(self, heard: Heard) -> bool | None:
        """Take it up; say whether this node now has it as the others do, None if it held no more and was left."""

    @abstractmethod
    def hear_alias(self, alias: Alias) -> None:
        """Take up an alias that other nodes set or moved; the registry has kept it."""

    @abstractmethod
    def hear_alias_removed(self, name: str) -> None:
        """Take up that other nodes removed an alias; the registry has forgotten it."""

    @abstractmethod
    def note_sync(self, artifact_id: str) -> None:
        """``sync_of`` may say something else of an ID now."""


class Registry(ABC):
    """Keeps registrations. When a method has returned, what it did survives SIGKILL.

    Writes of one registry take effect in the order in which they were called.
    Every method may raise RegistryUnavailable if the store itself fails; the log says where it is.
    """

    @abstractmethod
    async def load_all(self) -> list[Registration]:
        """Return everything known, by ID. Records that cannot be read are left out and logged."""

    @abstractmethod
    async def put(self, registration: Registration) -> None:
        """Insert or replace the registration of its ID.

        Raises:
            InvalidSpec: its config and names are larger than a registry keeps.
        """

    async def put_new(self, registration: Registration) -> None:
        """Insert the registration of an ID that this node did not know.

        Raises:
            InvalidSpec: as ``put``.
            SpecMismatch: a registry that nodes share has the ID with another spec; nothing was kept.
        """
        await self.put(registration)

    @abstractmethod
    async def delete(self, artifact_id: str) -> None:
        """Forget an ID. Forgetting an unknown one is fine."""

    @abstractmethod
    async def load_aliases(self) -> list[Alias]:
        """Return every alias, by name."""

    @abstractmethod
    async def swap_alias(self, before: Alias | None, after: Alias) -> Alias:
        """Keep an alias that was ``before``, None for a new one; return it as it is now, which may be newer still.

        Raises:
            AliasMoved: in a registry that nodes share it is another now.
            RegistryUnavailable: that registry is not in reach.
        """

    @abstractmethod
    async def remove_alias(self, before: Alias) -> None:
        """Forget an alias that was ``before``; raises as ``swap_alias``."""

    async def load_uses(self) -> dict[str, datetime]:
        """Return when what was in this node's memory was last used, by ID. No other node has a part in it."""
        return {}

    async def keep_uses(self, used: Mapping[str, datetime], gone: Collection[str]) -> None:  # noqa: B027
        """Remember when artifacts were last used, and forget it of those that are not in memory any more."""

    def start(self, listener: Listener) -> None:  # noqa: B027 - nothing to do where nothing is shared
        """Begin to share, if this kind of registry does. Called once, when what it has was loaded."""

    def sync_of(self, artifact_id: str) -> Sync | None:  # noqa: ARG002
        """Say how far other nodes know of a registration; None if this kind of registry is not shared."""
        return None

    @property
    def is_up(self) -> bool:
        """Whether what nodes share is in reach; what is not shared always is."""
        return True

    @abstractmethod
    async def close(self) -> None:
        """Finish pending writes and close. Idempotent."""

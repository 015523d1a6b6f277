"""Aliases of a fake, as a daemon moves them. May be used by several threads."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

from warmshelf.errors import AliasMoved, ArtifactNotFound
from warmshelf.types import Alias, AliasMove


class FakeAliases:
    """What names mean."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the aliases
        self._by_name: dict[str, Alias] = {}

    def set(self, name: str, artifact_id: str, expect: str) -> Alias:
        """Move an alias from what is expected, "" for a new one."""
        with self._lock:
            before = self._by_name.get(name)
            actual = before.artifact_id if before else ""
            if actual != expect:
                raise AliasMoved(f"alias {name!r} means {actual or 'nothing'}, not {expect or 'nothing'}", name=name)
            history = (*(before.history if before else ()), AliasMove(artifact_id, datetime.now(timezone.utc)))
            self._by_name[name] = Alias(name, history)
            return self._by_name[name]

    def remove(self, name: str, expect: str) -> None:
        """Forget an alias that means what is expected, "" for whatever."""
        with self._lock:
            alias = self._by_name.get(name)
            if alias is None:
                raise ArtifactNotFound(f"there is no alias {name!r}", name=name)
            if expect not in ("", alias.artifact_id):
                raise AliasMoved(f"alias {name!r} means {alias.artifact_id}, not {expect}", name=name)
            del self._by_name[name]

    def before(self, name: str) -> tuple[str, str]:
        """Return what an alias meant before its last move, and what it means."""
        with self._lock:
            alias = self._by_name.get(name)
        others = [move.artifact_id for move in alias.history if move.artifact_id != alias.artifact_id] if alias else []
        if alias is None or not others:
            raise ArtifactNotFound(f"alias {name!r} never meant anything else", name=name)
        return others[-1], alias.artifact_id

    def all(self) -> list[Alias]:
        """Return every alias, by name."""
        with self._lock:
            return [self._by_name[name] for name in sorted(self._by_name)]

    def resolve(self, artifact_id: str) -> str:
        """Return what an ID means if it is an alias, else itself."""
        with self._lock:
            alias = self._by_name.get(artifact_id)
        return alias.artifact_id if alias else artifact_id

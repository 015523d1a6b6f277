"""Adapters and their bases: numbers for engines, and whether an adapter fits its base.

Runs on the event loop; comparing goes to threads. A base's shapes come from its
resident segment, else from its source's headers; what an adapter needs is kept
in the registry, so a check needs no source of the adapter.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from warmshelf.errors import BaseMismatch, Internal, InvalidSpec, WarmshelfError
from warmshelf.layout import TensorSpec
from warmshelf.types import AdapterInspection, ArtifactKind, ArtifactState, BaseCheck, Inspection
from warmshelfd.by_identity import ByIdentity
from warmshelfd.domain.adapter_shapes import AdapterShapes
from warmshelfd.domain.base_check import BaseResult, check_against_base
from warmshelfd.domain.catalog import Catalog, Entry
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.inspecting import Examined
from warmshelfd.loading import Loader
from warmshelfd.records import to_registration
from warmshelfd.registry.base import Registration, Registry
from warmshelfd.residency import Residency
from warmshelfd.running import log_failure

_log = logging.getLogger(__name__)

_NUMBER_MAX = (1 << 31) - 1
"""What engines take."""

_VOCABULARY = "vocabulary:"

_NOT_COMPARED = BaseResult(BaseCheck.UNCHECKED, (), ())

_RESULTS_MAX = 32
"""Comparisons remembered: thousands of adapters are trained by a few recipes."""

_REMEMBERED_COUNT_MAX = 32_768
"""Tensors of a base that is kept for them: all of these together take some hundred MB at most."""

_Tensors = Sequence[TensorEntry] | Sequence[TensorSpec]


class Matching:
    """Completes what inspection of an adapter found by what the catalog knows."""

    def __init__(
        self,
        catalog: Catalog,
        residency: Residency,
        loader: Loader,
        registry: Registry,
        withdraw: Callable[[Entry, WarmshelfError], None],
    ) -> None:
        self._catalog = catalog
        self._residency = residency
        self._loader = loader
        self._registry = registry
        self._withdraw = withdraw
        # Event loop only: adapters being compared with a base that came.
        self._checks: set[asyncio.Task[None]] = set()
        self._results: ByIdentity[BaseResult] = ByIdentity(_RESULTS_MAX)
        self._last_number = 0  # the highest ever given, of those still known; event loop only

    async def complete(self, known: Registration, examined: Examined) -> Registration:
        """Return the registration with what an inspection found; an adapter has its number and is checked.

        Raises:
            BaseMismatch: it does not fit its base.
            InvalidSpec: what is said to be its base is an adapter.
        """
        found = dataclasses.replace(
            known,
            kind=examined.inspected.kind,
            inspection=examined.inspection,
            fingerprint=examined.fingerprint,
            adapter_shapes=examined.inspected.adapter_shapes,
        )
        adapter = examined.inspected.adapter
        if adapter is None:
            return found
        before = known.inspection.adapter if known.inspection else None
        number = before.adapter_number if before else self._next_number()
        return await self.check(_with_adapter(found, dataclasses.replace(adapter, adapter_number=number)))

    def numbered(self, found: Registration, entry: Entry | None) -> Registration:
        """Return a registration that another node inspected with this node's number for the adapter, if it is one."""
        adapter = found.inspection.adapter if found.inspection else None
        if adapter is None:
            return found
        number = (entry.adapter_number if entry else 0) or self._next_number()
        return _with_adapter(found, dataclasses.replace(adapter, adapter_number=number))

    async def check(self, known: Registration) -> Registration:
        """Return the registration as a comparison with its base leaves it; nothing changes if that cannot be read.

        Raises:
            BaseMismatch: the adapter does not fit.
            InvalidSpec: what is said to be its base is an adapter.
        """
        adapter, shapes = (known.inspection.adapter if known.inspection else None), known.adapter_shapes
        base = self._catalog.find(known.spec.base_id) if known.spec.base_id else None
        held = await self._base_tensors(base) if adapter and shapes and base else None
        if adapter is None or shapes is None or held is None:
            return known
        try:
            result = self._results.find(shapes, held) or await self._compared(shapes, held)
        except BaseMismatch as error:
            error.details.setdefault("base_id", known.spec.base_id)
            raise
        if self._catalog.find(known.spec.base_id) is not base:
            return unchecked(known)  # removed while it was compared with
        return _with_adapter(known, _judged(adapter, result))

    async def _compared(self, shapes: AdapterShapes, held: _Tensors) -> BaseResult:
        result = await self._residency.in_thread(_compare, shapes, held)
        if len(held) <= _REMEMBERED_COUNT_MAX:
            self._results.keep(result, shapes, held)
        return result

    async def _base_tensors(self, base: Entry) -> _Tensors | None:
        """Return the tensors of a base, the same object as long as it is the same; None if it cannot be read now."""
        base_id = base.artifact_id
        if base.kind is ArtifactKind.ADAPTER:
            raise InvalidSpec(f"{base_id!r} is an adapter, no base", base_id=base_id)
        layout = self._residency.find_layout(base.segment_id)
        if layout is not None:
            return layout.tensors
        try:
            examined = await self._loader.inspect(base.spec.source, needs_key=False)
        except WarmshelfError as error:
            _log.info("base %s cannot be looked at now: %s", base_id, error)
            return None
        return examined.inspected.entries

    # --- when a base comes or goes ------------------------------------------

    def base_came(self, base: Entry) -> None:
        """Compare the adapters of a new base with it, behind everything else."""
        if base.kind is not ArtifactKind.ADAPTER and any(self.adapters_of(base.artifact_id)):
            task = asyncio.get_running_loop().create_task(self._check_adapters(base.artifact_id))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)
            task.add_done_callback(log_failure)

    def gone(self, entry: Entry) -> list[Entry]:
        """An artifact is no longer known. If it was a base, let its adapters say so; return them, for ``keep``.

        What fitted it need not fit the next of its name. They are served as before.
        """
        return [] if entry.kind is ArtifactKind.ADAPTER else self._doubt({entry.artifact_id})

    def bases_missing(self) -> None:
        """Do the same for every base that is not known: the daemon may have died before all was kept."""
        named = {entry.spec.base_id for entry in self._catalog if _is_compared(entry)}
        self._doubt({base_id for base_id in named if self._catalog.find(base_id) is None})

    def _doubt(self, base_ids: set[str]) -> list[Entry]:
        doubted = [entry for entry in self._catalog if entry.spec.base_id in base_ids and _is_compared(entry)]
        for entry in doubted:
            entry.inspection = unchecked(to_registration(entry)).inspection
            self._catalog.changed(entry)
        return doubted

    async def keep(self, entries: Iterable[Entry]) -> None:
        """Let the registry know adapters as they are now; those removed meanwhile are left out."""
        await asyncio.gather(*map(self._put, entries))

    async def _put(self, entry: Entry) -> None:
        if self._catalog.find(entry.artifact_id) is entry:
            await self._registry.put(to_registration(entry))

    async def _check_adapters(self, base_id: str) -> None:
        for entry in self.adapters_of(base_id):
            try:
                await self.check_base(entry)
            except WarmshelfError as error:
                _log.warning("adapter %s: %s", entry.artifact_id, error)
                if entry.state is ArtifactState.READY:
                    self._withdraw(entry, error)

    async def check_base(self, entry: Entry) -> None:
        """Compare an adapter with its base as that is now, and keep what was found.

        Raises:
            BaseMismatch: it does not fit.
        """
        known = to_registration(entry)
        try:
            found = await self.check(known)
        except BaseMismatch:
            await self._keep(entry, unchecked(known))
            raise
        await self._keep(entry, found)

    async def _keep(self, entry: Entry, found: Registration) -> None:
        """Remember what is known better now, unless the artifact has changed meanwhile."""
        known = to_registration(entry)
        better = dataclasses.replace(known, inspection=found.inspection)
        is_known = self._catalog.find(entry.artifact_id) is entry
        if is_known and better != known and known.fingerprint == found.fingerprint:
            entry.inspection = found.inspection
            self._catalog.changed(entry)
            await self._registry.put(better)

    async def close(self) -> None:
        """Stop comparing."""
        for task in self._checks:
            task.cancel()
        if self._checks:
            await asyncio.wait(self._checks)

    def adapters_of(self, base_id: str) -> Iterator[Entry]:
        """Return the adapters registered for a base."""
        return (e for e in list(self._catalog) if e.spec.base_id == base_id and e.kind is ArtifactKind.ADAPTER)

    def _next_number(self) -> int:
        if not self._last_number:
            self._last_number = max((entry.adapter_number for entry in self._catalog), default=0)
        if self._last_number >= _NUMBER_MAX:
            raise Internal(f"all {_NUMBER_MAX} adapter numbers are used up")
        self._last_number += 1
        return self._last_number


def _compare(shapes: AdapterShapes, held: _Tensors) -> BaseResult:
    return check_against_base(shapes, {tensor.name: tensor.shape for tensor in held})


def unchecked(known: Registration) -> Registration:
    """Return the registration of an adapter of which nothing is known any more about how it fits."""
    adapter = known.inspection.adapter if known.inspection else None
    return known if adapter is None else _with_adapter(known, _judged(adapter, _NOT_COMPARED))


def needs_check(entry: Entry) -> bool:
    """Say whether an adapter names a base and was not compared with it yet."""
    adapter = entry.inspection.adapter if entry.inspection else None
    return adapter is not None and adapter.base_check is BaseCheck.UNCHECKED and bool(entry.spec.base_id)


def _is_compared(entry: Entry) -> bool:
    adapter = entry.inspection.adapter if entry.inspection else None
    return adapter is not None and adapter.base_check is not BaseCheck.UNCHECKED


def _judged(adapter: AdapterInspection, result: BaseResult) -> AdapterInspection:
    features = {name for name in adapter.features if not name.startswith(_VOCABULARY)} | {*result.features}
    return dataclasses.replace(
        adapter,
        base_check=result.check,
        unmatched_module_names=result.unmatched,
        features=tuple(sorted(features)),
    )


def _with_adapter(known: Registration, adapter: AdapterInspection) -> Registration:
    inspection = dataclasses.replace(known.inspection or Inspection(), adapter=adapter)
    return dataclasses.replace(known, inspection=inspection)

"""Many adapters in one batch: each row of it uses its own, by the ID under which a shelf knows it.

A bank has a fixed number of slots. An adapter is copied into one when a row first needs it, and
stays there until another needs the room. Only the copy has the scaling in it and padded ranks; the shelf's
bytes stay what they are. Needs the extra ``torch``; knows transformers' names of fused modules, and nothing else of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import torch

from warmshelf._bank_linear import LinearHook, Selected, SelectionBuffers, Stack
from warmshelf._bank_modules import Fused, check_layer, linears, modules_of, targets_of
from warmshelf._bank_plan import HONOURED_FEATURES, Pair, plan
from warmshelf._bank_slots import Content, SlotTable
from warmshelf._torch_tensors import tensors
from warmshelf.client import Shelf
from warmshelf.errors import InvalidRequest, MalformedArtifact, UnsupportedDtype
from warmshelf.lease import Lease
from warmshelf.types import Artifact


class Slots(Sequence[int]):
    """The slot of every row, held until ``release``: what lies in them stays. A context manager.

    ``_held`` has each slot once; whoever empties it first gives them back.
    """

    def __init__(self, table: SlotTable, numbers: Iterable[int]) -> None:
        self._table = table
        self._numbers = tuple(numbers)
        self._held = set(self._numbers)

    def release(self) -> None:
        """Let go of them. Idempotent."""
        held, self._held = self._held, set()
        self._table.release(held)

    def __getitem__(self, index: Any) -> Any:
        return self._numbers[index]

    def __len__(self) -> int:
        return len(self._numbers)

    def __enter__(self) -> Slots:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Copy(NamedTuple):
    """One pair, ready for its place."""

    stack: Stack
    a: torch.Tensor
    b: torch.Tensor


class AdapterBank:
    """Slots for the adapters of a model, filled from a shelf by ID.

    ``slots_for`` may be called by any thread, ``select`` by the one that runs the model.
    ``_filling`` lets one adapter in after another; the table has a lock of its own.

    Attributes:
        slot_count, rank_max, row_count_max: as given.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        slot_count: int = 8,
        rank_max: int = 16,
        row_count_max: int = 64,
        modules: Sequence[str] | None = None,
        fused: Fused | None = None,
        dtype: torch.dtype | None = None,
        features: Sequence[str] = (),
    ) -> None:
        """Make room for the model's linear layers; the model itself is only looked at.

        Args:
            model: whose layers adapters will change, on the device where it will run.
            slot_count: how many adapters one batch can use.
            rank_max: the largest rank that is taken.
            row_count_max: rows of the largest batch.
            modules: last names of the layers, such as ``q_proj``; None: all but the output layer.
            fused: outputs of fused layers by the names that adapters give them, as
                ``{"qkv_proj": {"q_proj": 576, ...}}``; None: as transformers' config says.
            dtype: of the copies; None: each layer's own, but float32 on CPUs, where it is the faster one for
                products so small, and loses nothing of adapters that were saved in it.
            features: of adapters, what the caller answers for beyond what a bank honours.
        """
        for name, number in (("slot_count", slot_count), ("rank_max", rank_max), ("row_count_max", row_count_max)):
            if number < 1:
                raise InvalidRequest(f"{name} is {number}, at least 1 is needed")
        self.slot_count, self.rank_max, self.row_count_max = slot_count, rank_max, row_count_max
        self._features = (*HONOURED_FEATURES, *features)
        layers = linears(model, modules)
        self._targets = targets_of(model, layers, fused)
        self._modules = modules_of(self._targets)
        device = next(iter(layers.values())).weight.device
        self._stacks = {
            target: Stack(target, slot_count, rank_max, dtype or _dtype(layers[target.module]), device)
            for targets in self._targets.values()
            for target in targets.values()
        }
        self._table = SlotTable(slot_count)
        self._filling = threading.Lock()
        self._buffers = SelectionBuffers(row_count_max, slot_count, rank_max, device)
        self._selected = Selected()

    @property
    def resident(self) -> Mapping[int, str]:
        """The IDs of the adapters that are in slots, by slot."""
        return {slot: content.artifact_id for slot, content in self._table.contents().items()}

    def stacks(self, module: str) -> list[Stack]:
        """Return the stacked pairs of a layer of the model, in the order of its outputs."""
        return [self._stacks[target] for target in self._targets[module].values()]

    def hooks(self) -> Iterator[tuple[str, LinearHook]]:
        """Yield each layer's name and what to hook to its forward; ``apply_bank`` does it."""
        for name in self._targets:
            yield name, LinearHook(self.stacks(name), self._selected)

    def slots_for(
        self, shelf: Shelf, ids: Iterable[str | None], *, timeout: float | None = None, wait_seconds: float = 0.0
    ) -> Slots:
        """Return the slot of every row's adapter, 0 for None, each filled from the shelf if need be and held.

        Args:
            shelf: knows the adapters.
            ids: by row.
            timeout: seconds for each adapter that is acquired.
            wait_seconds: how long to wait for a slot, while all are held.

        Raises:
            BankFull: no slot came free.
            BaseMismatch: the adapter is of another base; names module, expected and got.
            FeatureUnsupported, RankTooLarge: the bank would serve it wrongly.
            InvalidRequest: more adapters at once than there are slots.
        """
        wanted = list(ids)
        distinct = dict.fromkeys(one for one in wanted if one is not None)
        if len(distinct) > self.slot_count:
            raise InvalidRequest(
                f"{len(distinct)} adapters at once are more than the bank's {self.slot_count} slots",
                adapter_count=len(distinct),
                slot_count=self.slot_count,
            )
        with ExitStack() as undo:
            slots: dict[str | None, int] = {None: 0}
            for one in distinct:
                slots[one] = self._hold(shelf, one, timeout, wait_seconds)
                undo.callback(self._table.release, [slots[one]])
            undo.pop_all()
        return Slots(self._table, [slots[one] for one in wanted])

    @contextmanager
    def select(self, slots: Sequence[int]) -> Iterator[None]:
        """Let each row of the batches within use its slot, or none where it is 0. Outside, all rows are the base's.

        Raises:
            InvalidRequest: a slot is not held, a batch is already selected, or there are too many rows.
        """
        numbers = list(slots)
        if not 0 < len(numbers) <= self.row_count_max:
            raise InvalidRequest(f"{len(numbers)} rows were selected, 1 to {self.row_count_max} can be")
        if self._selected.rows is not None:
            raise InvalidRequest("a batch is already selected: a bank serves one at a time")
        self._table.hold_again(numbers)
        try:
            self._selected.rows = self._buffers.put(numbers)
            yield
        finally:
            self._selected.rows = None
            self._table.release(numbers)

    # --- filling ---

    def _hold(self, shelf: Shelf, artifact_id: str, timeout: float | None, wait_seconds: float) -> int:
        """Return the held slot of an adapter. One whose generation is there is not acquired again."""
        slot = self._table.hold(_content(shelf.get(artifact_id)))
        if slot:
            return slot
        with self._filling:
            artifact = shelf.get(artifact_id)  # another thread may have let it in meanwhile
            return self._table.hold(_content(artifact)) or self._let_in(shelf, artifact, timeout, wait_seconds)

    def _let_in(self, shelf: Shelf, artifact: Artifact, timeout: float | None, wait_seconds: float) -> int:
        inspected = artifact.inspection and artifact.inspection.adapter
        if inspected and {*inspected.features} <= {*self._features} and inspected.rank_max <= self.rank_max:
            self._modules.check(inspected.module_names)  # before it is loaded for nothing; the rest the daemon refuses
        with shelf.acquire(
            artifact.artifact_id, timeout=timeout, rank_max=self.rank_max, features=self._features
        ) as lease:
            copies = self._copies(lease)
            slot = self._table.take(wait_seconds)
            try:
                self._fill(slot, copies)
            except BaseException:
                self._table.drop(slot)
                raise
            self._table.fill(slot, _content(lease.artifact, lease.layout.segments[0].segment_id))
            return slot

    def _copies(self, lease: Lease) -> list[_Copy]:
        """Return copies of all pairs, with the scaling in B. Everything is checked before the first."""
        shapes = {name: spec.shape for name, spec in lease.specs.items()}
        pairs = plan(lease.config, shapes, self._modules, self.rank_max)
        found = tensors(lease)
        return [copy for pair in pairs for copy in self._pair_copies(pair, found)]

    def _pair_copies(self, pair: Pair, found: Mapping[str, torch.Tensor]) -> Iterator[_Copy]:
        a, b = found[pair.a_name], found[pair.b_name]
        for name, half in ((pair.a_name, a), (pair.b_name, b)):
            if not half.is_floating_point():
                raise UnsupportedDtype(
                    f"tensor {name!r} is {half.dtype}, a bank takes floating-point numbers", tensor=name
                )
        places = self._modules.places(pair.name)
        parts = b.split([place.out_features for place in places])
        for place, part in zip(places, parts, strict=True):
            dtype = self._stacks[place].a.dtype
            scaled = (part.float() * pair.scaling).t().to(dtype)
            yield _Copy(self._stacks[place], _finite(a.to(dtype), pair.a_name), _finite(scaled, pair.b_name))

    def _fill(self, slot: int, copies: Iterable[_Copy]) -> None:
        with torch.no_grad():
            for stack in self._stacks.values():
                stack.clear(slot - 1)
            for stack, a, b in copies:
                stack.put(slot - 1, a, b)


class Applied:
    """A bank that is on a model, until ``remove``. A context manager."""

    def __init__(self, hooks: ExitStack) -> None:
        self._hooks = hooks  # one for each layer; emptied once

    def remove(self) -> None:
        """Make the model what it was. Idempotent."""
        self._hooks.close()

    def __enter__(self) -> Applied:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def apply_bank(model: torch.nn.Module, bank: AdapterBank) -> Applied:
    """Put a bank on a model's linear layers, by hooks: names, weights and modules stay as they are.

    Raises:
        BaseMismatch: the model has not the layers that the bank was made for.
    """
    layers = dict(model.named_modules())
    with ExitStack() as hooks:
        for name, hook in bank.hooks():
            layer = check_layer(name, layers.get(name), [stack.target for stack in bank.stacks(name)])
            hooks.callback(layer.register_forward_hook(hook).remove)
        return Applied(hooks.pop_all())


def _content(artifact: Artifact, otherwise: str = "") -> Content:
    """Return what an artifact is at the moment. Without a digest it is found in no slot: a slot's is never empty."""
    return Content(artifact.artifact_id, artifact.generation, artifact.digest or otherwise)


def _dtype(layer: torch.nn.Linear) -> torch.dtype:
    """Return the dtype of a layer's copies, where the caller says nothing; of quantized layers he has to."""
    if not layer.weight.is_floating_point():
        raise InvalidRequest(f"a layer holds {layer.weight.dtype}: say the bank's dtype")
    dtype: torch.dtype = layer.weight.dtype
    return torch.float32 if layer.weight.device.type == "cpu" and dtype.itemsize < torch.float32.itemsize else dtype


def _finite(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the tensor. In a stack, one that is not finite would reach the other rows: nothing times it is nothing."""
    if not bool(torch.isfinite(tensor).all()):
        raise MalformedArtifact(f"tensor {name!r} has values that are not finite as {tensor.dtype}", tensor=name)
    return tensor

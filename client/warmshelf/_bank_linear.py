"""The stacked pairs of a place, and what they add to the outputs of a linear layer.

Plain operations of torch on shapes that stay the same whatever the slots hold and whichever
rows use them. Knows no adapter and no shelf.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from warmshelf._bank_plan import Target
from warmshelf.errors import InvalidRequest

STACKED_TOKENS_MAX = 16
"""Slots times tokens of a row up to which all slots are one matrix.

Below it, as in a decode step, multiplying by every slot and masking costs less than collecting the
rows' own slots; above it, as for a prompt, collecting them does. On one AVX-512 core with 32 rows, rank 16 and
SmolLM2's layers, in parts of the layers' own time: 8 slots 0.32 against 0.62 with one token a row, 0.32
against 0.27 with 4, 0.34 against 0.27 with 32; 32 slots 1.12 against 0.84 with one token.
"""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which slot each row of the running batch uses.

    Attributes:
        slots: [rows], from 0; any where there is no adapter.
        adapted: [rows, 1, 1], whether there is one.
        foreign: [rows, 1, slots * rank], which of the stacked slots' ranks are not the row's.
    """

    slots: torch.Tensor
    adapted: torch.Tensor
    foreign: torch.Tensor


class SelectionBuffers:
    """Where selections lie: always at the same addresses, so that compiled and captured programs see the next one."""

    def __init__(self, row_count_max: int, slot_count: int, rank_max: int, device: torch.device) -> None:
        self._slots = torch.zeros(row_count_max, dtype=torch.int64, device=device)
        self._adapted = torch.zeros(row_count_max, 1, 1, dtype=torch.bool, device=device)
        self._foreign = torch.ones(row_count_max, 1, slot_count * rank_max, dtype=torch.bool, device=device)
        self._owners = torch.arange(slot_count, device=device).repeat_interleave(rank_max)

    def put(self, numbers: list[int]) -> Selection:
        """Select slots from 1, or 0 for none, by row."""
        count = len(numbers)
        wanted = torch.tensor(numbers, dtype=torch.int64).to(self._slots.device)
        selection = Selection(self._slots[:count], self._adapted[:count], self._foreign[:count])
        selection.slots.copy_((wanted - 1).clamp_(min=0))
        selection.adapted.copy_((wanted > 0).view(-1, 1, 1))
        selection.foreign.copy_((wanted.view(-1, 1) - 1 != self._owners).view(count, 1, -1))
        return selection


class Stack:
    """The pairs of all slots at one place, scaling already in B. Zeros where an adapter has less than the room.

    Attributes:
        a: [slots, rank_max, in].
        b_rows: [slots, rank_max, out], as both ways of multiplying want it.
    """

    def __init__(
        self, target: Target, slot_count: int, rank_max: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.target = target
        self.a = torch.zeros(slot_count, rank_max, target.in_features, dtype=dtype, device=device)
        self.b_rows = torch.zeros(slot_count, rank_max, target.out_features, dtype=dtype, device=device)

    @property
    def b(self) -> torch.Tensor:
        """[slots, out, rank_max]: the same memory as ``b_rows``."""
        return self.b_rows.transpose(1, 2)

    def clear(self, slot: int) -> None:
        """Make a slot add nothing."""
        self.a[slot].zero_()
        self.b_rows[slot].zero_()

    def put(self, slot: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Copy a pair, [rank, in] and [rank, out], into a slot that was cleared."""
        self.a[slot, : len(a)].copy_(a)
        self.b_rows[slot, : len(b)].copy_(b)

    def added(self, x: torch.Tensor, outputs: torch.Tensor, rows: Selection) -> torch.Tensor:
        """Return outputs [rows, tokens, out] with what the rows' adapters make of x [rows, tokens, in]."""
        if len(self.a) * x.shape[1] <= STACKED_TOKENS_MAX:
            changed = self._added_by_all(x, outputs, rows)
        else:
            changed = self._added_by_own(x, outputs, rows)
        # A row without an adapter keeps its very bits: -0.0 + 0.0 would be 0.0.
        return torch.where(rows.adapted, changed, outputs)

    def _added_by_all(self, x: torch.Tensor, outputs: torch.Tensor, rows: Selection) -> torch.Tensor:
        shrunk = torch.nn.functional.linear(x, self.a.flatten(0, 1)).masked_fill_(rows.foreign, 0)
        if outputs.dtype != shrunk.dtype:
            return outputs + (shrunk @ self.b_rows.flatten(0, 1)).to(outputs.dtype)
        added = torch.addmm(outputs.flatten(0, 1), shrunk.flatten(0, 1), self.b_rows.flatten(0, 1))
        return added.view(outputs.shape)

    def _added_by_own(self, x: torch.Tensor, outputs: torch.Tensor, rows: Selection) -> torch.Tensor:
        shrunk = torch.bmm(x, self.a.index_select(0, rows.slots).transpose(1, 2))
        expand = self.b_rows.index_select(0, rows.slots)
        if outputs.dtype != shrunk.dtype:
            return outputs + torch.bmm(shrunk, expand).to(outputs.dtype)
        return torch.baddbmm(outputs, shrunk, expand)


@dataclass
class Selected:
    """What all layers of a bank look at. ``rows`` is None while no batch runs; only the thread that runs it sets it."""

    rows: Selection | None = field(default=None)


class LinearHook:
    """A forward hook that adds a module's pairs to its outputs. The module stays as it is."""

    def __init__(self, stacks: list[Stack], selected: Selected) -> None:
        self._stacks = stacks
        self._selected = selected

    def __call__(
        self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the changed outputs; None, so that the module's own count, while no batch is selected."""
        rows = self._selected.rows
        if rows is None:
            return None
        x = inputs[0]
        if x.shape[0] != rows.slots.shape[0]:
            raise InvalidRequest("the batch has another number of rows than were selected")
        if x.dim() == 2:  # noqa: PLR2004 - one token a row
            return self._changed(x.unsqueeze(1), outputs.unsqueeze(1), rows).squeeze(1)
        return self._changed(x, outputs, rows)

    def _changed(self, x: torch.Tensor, outputs: torch.Tensor, rows: Selection) -> torch.Tensor:
        x = x.to(self._stacks[0].a.dtype)
        if len(self._stacks) == 1:
            return self._stacks[0].added(x, outputs, rows)
        sizes = [stack.target.out_features for stack in self._stacks]
        parts = outputs.split(sizes, dim=-1)
        return torch.cat([stack.added(x, part, rows) for stack, part in zip(self._stacks, parts, strict=True)], dim=-1)

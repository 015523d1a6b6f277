"""Which adapter is in which slot: by least recent use, never under a running batch, and never an older generation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import warmshelf
from bank.conftest import artifact_id
from kit.llama import TOKENS, load_by_peft, logits, save_adapter
from kit.processes import Daemon, eventually
from warmshelf import errors
from warmshelf._bank_slots import Content, SlotTable
from warmshelf.torch import AdapterBank, apply_bank

PLAIN, RANK1, RANK8 = (artifact_id(name) for name in ("plain", "rank1", "rank8"))


def use(bank: AdapterBank, shelf: warmshelf.Shelf, *ids: str) -> list[int]:
    with bank.slots_for(shelf, ids) as slots:
        return list(slots)


def test_64_adapters_over_8_slots_are_each_their_own(shelf: warmshelf.Shelf, daemon: Daemon, model: Any) -> None:
    """Two rounds in two orders, four at a time: each slot is used by sixteen adapters."""
    directories = {}
    for number in range(64):
        name = f"many/{number}"
        fields = {"r": 1 + number % 4, "target_modules": ["q_proj", "v_proj"], "seed": number}
        directories[name] = save_adapter(model, daemon.models / f"many-{number}", **fields)
        shelf.register(name, directories[name])
    bank = AdapterBank(model, slot_count=8, rank_max=4)
    expected = {name: logits(load_by_peft(model, directory)) for name, directory in directories.items()}
    names = list(directories)
    with apply_bank(model, bank):
        for order in (names, names[::-7] + [name for name in names if name not in names[::-7]]):
            for start in range(0, 64, 4):
                batch = order[start : start + 4]
                with bank.slots_for(shelf, batch) as slots, bank.select(slots):
                    found = batched_logits(model, 4)
                torch.testing.assert_close(found, torch.cat([expected[name] for name in batch]), rtol=0, atol=1e-5)
    assert len(bank.resident) == 8
    for name in names:
        shelf.remove(name)


def batched_logits(model: Any, row_count: int) -> torch.Tensor:
    """Ask the same of several rows as is asked of one."""
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=TOKENS.expand(row_count, -1)).logits
    return found


def test_what_was_used_least_recently_makes_room_and_what_is_held_never(shelf: warmshelf.Shelf, model: Any) -> None:
    bank = AdapterBank(model, slot_count=2, rank_max=8)
    first, second = use(bank, shelf, PLAIN), use(bank, shelf, RANK1)
    assert use(bank, shelf, PLAIN) == first  # now the other is the older one
    assert use(bank, shelf, RANK8) == second
    held = bank.slots_for(shelf, [RANK8])
    assert use(bank, shelf, RANK1) == first
    assert list(held) == second
    with bank.slots_for(shelf, [RANK1]), pytest.raises(errors.BankFull) as full:
        bank.slots_for(shelf, [PLAIN])
    assert full.value.details["slot_count"] == 2
    assert bank.resident == {second[0]: RANK8, first[0]: RANK1}
    held.release()
    held.release()
    assert use(bank, shelf, PLAIN) == second


def test_a_slot_of_a_selected_batch_stays_though_it_was_released(shelf: warmshelf.Shelf, model: Any) -> None:
    bank = AdapterBank(model, slot_count=1, rank_max=8)
    slots = bank.slots_for(shelf, [PLAIN, None])
    with bank.select(slots):
        slots.release()
        with pytest.raises(errors.BankFull):
            bank.slots_for(shelf, [RANK1])
    assert use(bank, shelf, RANK1) == [1]
    with pytest.raises(errors.InvalidRequest, match="slot 1 is held by nobody"), bank.select(slots):
        pass


def test_who_waits_gets_the_slot_that_is_released(shelf: warmshelf.Shelf, model: Any) -> None:
    bank = AdapterBank(model, slot_count=1, rank_max=8)
    held = bank.slots_for(shelf, [PLAIN])
    got: list[list[int]] = []

    def wait() -> None:
        with bank.slots_for(shelf, [RANK1], wait_seconds=30) as slots:
            got.append(list(slots))

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(bank._filling.locked, "an adapter is being let in")
    assert use(bank, shelf, PLAIN) == [1]  # what is there is had meanwhile
    held.release()
    waiter.join(30)
    assert got == [[1]]


def test_threads_that_want_one_adapter_at_once_fill_one_slot(shelf: warmshelf.Shelf, model: Any) -> None:
    bank = AdapterBank(model, slot_count=4, rank_max=8)
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.extend(use(bank, shelf, PLAIN))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == [got[0]] * 8
    assert list(bank.resident.values()) == [PLAIN]


@pytest.mark.parametrize("again", ["replaced", "removed and made anew"])
def test_a_new_generation_is_a_new_slot(
    shelf: warmshelf.Shelf, registered: Callable[..., str], model: Any, again: str
) -> None:
    """B03: an ID alone is no identity; who holds the old one keeps it."""
    name = registered("acme/changing", seed=1)
    bank = AdapterBank(model, slot_count=2, rank_max=8)
    with apply_bank(model, bank), bank.slots_for(shelf, [name]) as old:
        with bank.select(old):
            before = logits(model)
        if again == "replaced":
            registered("acme/changing", seed=2, replace=True)
        else:
            shelf.remove(name)
            registered("acme/changing", seed=2)
        with bank.slots_for(shelf, [name]) as new, bank.select(new):
            assert list(new) != list(old)
            assert not torch.equal(logits(model), before)
        with bank.select(old):
            assert torch.equal(logits(model), before)


def test_what_is_in_a_slot_needs_no_memory_of_the_daemon(shelf: warmshelf.Shelf, model: Any) -> None:
    bank = AdapterBank(model, slot_count=2, rank_max=8)
    slot = use(bank, shelf, PLAIN)
    shelf.evict(PLAIN)
    assert use(bank, shelf, PLAIN) == slot
    assert shelf.get(PLAIN).state is warmshelf.ArtifactState.REGISTERED


def test_more_adapters_than_slots_and_rows_than_room_are_refused(shelf: warmshelf.Shelf, model: Any) -> None:
    bank = AdapterBank(model, slot_count=2, rank_max=8, row_count_max=3)
    with pytest.raises(errors.InvalidRequest, match="3 adapters at once are more than the bank's 2 slots"):
        bank.slots_for(shelf, [PLAIN, RANK1, RANK8])
    for rows in ([0] * 4, []):
        said = f"{len(rows)} rows were selected, 1 to 3 can be"
        with pytest.raises(errors.InvalidRequest, match=said), bank.select(rows):
            pass
    with bank.select([0, 0]), apply_bank(model, bank):
        with pytest.raises(errors.InvalidRequest, match="another number of rows"):
            batched_logits(model, 3)
        with pytest.raises(errors.InvalidRequest, match="already selected"), bank.select([0]):
            pass


def test_an_unknown_id_among_known_ones_holds_nothing(shelf: warmshelf.Shelf, model: Any) -> None:
    bank = AdapterBank(model, slot_count=1, rank_max=8)
    with pytest.raises(errors.ArtifactNotFound):
        AdapterBank(model, slot_count=2, rank_max=8).slots_for(shelf, ["nobody"])
    with pytest.raises(errors.InvalidRequest):
        bank.slots_for(shelf, [PLAIN, "nobody"])
    wide = AdapterBank(model, slot_count=2, rank_max=8)
    with pytest.raises(errors.ArtifactNotFound):
        wide.slots_for(shelf, [PLAIN, "nobody"])
    assert wide._table._holds == [0, 0, 0]


def test_the_table_prefers_empty_slots_and_forgets_what_it_replaces() -> None:
    table = SlotTable(2)
    one, two, three = (Content(name, 1, "d") for name in "abc")
    for content in (one, two):
        slot = table.take(0)
        table.fill(slot, content)
        table.release([slot])
    assert table.contents() == {1: one, 2: two}
    assert table.hold(Content("a", 2, "d")) == 0
    slot = table.take(0)
    assert (slot, table.hold(one)) == (1, 0)
    table.drop(slot)
    assert table.take(0) == 1
    assert table.hold(two) == 2
    with pytest.raises(errors.BankFull):
        table.take(0)
    assert table.hold(three) == 0

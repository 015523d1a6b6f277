"""Arguments of the wrong kind are refused by name, and nobody is asked for anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import warmshelf
from warmshelf.errors import InvalidId, InvalidRequest, InvalidSpec, WarmshelfError
from warmshelf.testing import FakeShelf

Call = Callable[[warmshelf.Shelf], object]
ODD: Any = {"none": None, "number": 5, "text": "5", "bytes": b"/x"}

CALLS: list[tuple[Call, type[WarmshelfError]]] = [
    (lambda shelf: shelf.get(ODD["none"]), InvalidId),
    (lambda shelf: shelf.get(ODD["number"]), InvalidId),
    (lambda shelf: shelf.evict(ODD["bytes"]), InvalidId),
    (lambda shelf: shelf.list(base=ODD["number"]), InvalidId),
    (lambda shelf: shelf.acquire("a", timeout=ODD["text"]), InvalidRequest),
    (lambda shelf: shelf.acquire("a", timeout=True), InvalidRequest),
    (lambda shelf: shelf.acquire("a", timeout=float("nan")), InvalidRequest),
    (lambda shelf: shelf.acquire("a", rank_max=ODD["text"]), InvalidRequest),
    (lambda shelf: shelf.acquire("a", expected_digest=ODD["number"]), InvalidSpec),
    (lambda shelf: shelf.register("a", ODD["none"]), InvalidSpec),
    (lambda shelf: shelf.register("a", ODD["bytes"]), InvalidSpec),
    (lambda shelf: shelf.register("a", ""), InvalidSpec),
    (lambda shelf: shelf.register("a", "file:/models/a"), InvalidSpec),
    (lambda shelf: shelf.register("a", "/x", base=ODD["number"]), InvalidId),
    (lambda shelf: shelf.register("a", "/x", digest=ODD["number"]), InvalidSpec),
    (lambda shelf: shelf.register("a", "/x", revision=ODD["number"]), InvalidSpec),
]


@pytest.mark.parametrize(("call", "refusal"), CALLS)
def test_an_argument_of_another_kind_is_refused_before_the_daemon_is_asked(
    call: Call, refusal: type[WarmshelfError]
) -> None:
    with warmshelf.connect("unix:///nowhere/api.sock", timeout=1) as shelf, pytest.raises(refusal):
        call(shelf)


@pytest.mark.parametrize("options", [{"address": 5}, {"timeout": "5"}, {"timeout": None}])
def test_a_shelf_is_not_made_of_them_either(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        warmshelf.connect(**{"address": "unix:///nowhere/api.sock", **options})


def test_a_fake_shelf_too_refuses_an_adapter_that_is_its_own_base() -> None:
    with pytest.raises(InvalidSpec, match="its own base"):
        FakeShelf().register("a", "/x", base="a", defer=True)

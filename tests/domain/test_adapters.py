"""Which adapters a worker may have."""

from __future__ import annotations

import pytest

from warmshelf.errors import FeatureUnsupported, RankTooLarge
from warmshelfd.domain.adapters import refuse


def test_a_rank_above_the_workers_is_refused_with_both_numbers() -> None:
    """B08."""
    with pytest.raises(RankTooLarge, match="rank 16, the worker takes at most 8") as caught:
        refuse([], 16, rank_max=8)
    assert caught.value.details == {"adapter_rank_max": 16, "rank_max": 8}


@pytest.mark.parametrize(("rank", "rank_max"), [(16, 16), (4, 8), (0, 8), (16, 0)])
def test_a_rank_within_the_workers_is_none_of_its_business(rank: int, rank_max: int) -> None:
    """B08."""
    refuse([], rank, rank_max=rank_max)


def test_features_that_the_worker_does_not_honour_are_named() -> None:
    """B07: all of them, and no other."""
    with pytest.raises(FeatureUnsupported, match=r"needs dora, init:pissa, which") as caught:
        refuse(["rslora", "init:pissa", "dora"], 4, honoured=["rslora", "init:olora"])
    assert caught.value.details == {"features": "dora, init:pissa"}


@pytest.mark.parametrize(
    ("features", "honoured"),
    [
        (["dora", "unknown_field:x"], []),
        (["dora"], ["dora", "rslora"]),
        (["vocabulary:10->12", "adapter_name:default"], ["vocabulary", "adapter_name:default"]),
        ([], ["rslora"]),
    ],
)
def test_a_worker_that_honours_all_or_says_nothing_gets_the_adapter(features: list[str], honoured: list[str]) -> None:
    refuse(features, 4, honoured=honoured)

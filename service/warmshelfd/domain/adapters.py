"""Whether a worker can take an adapter: by its rank, and by what it needs beyond plain LoRA. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from warmshelf.errors import FeatureUnsupported, RankTooLarge


def refuse(features: Iterable[str], rank: int, *, rank_max: int = 0, honoured: Collection[str] = ()) -> None:
    """Refuse an adapter that a worker would serve wrongly; return if it may have it.

    A feature may carry a detail, as ``init:pissa`` does. It is honoured by its whole
    name or by what stands before the colon.

    Args:
        features: what the adapter needs beyond plain LoRA.
        rank: its largest rank.
        rank_max: the largest that the worker takes; 0: any.
        honoured: features that the worker honours; none: any.

    Raises:
        RankTooLarge: carries both numbers.
        FeatureUnsupported: names every feature that the worker does not honour.
    """
    if 0 < rank_max < rank:
        raise RankTooLarge(
            f"the adapter has rank {rank}, the worker takes at most {rank_max}",
            adapter_rank_max=rank,
            rank_max=rank_max,
        )
    missing = sorted(one for one in features if honoured and not {one, one.partition(":")[0]} & {*honoured})
    if missing:
        raise FeatureUnsupported(
            f"the adapter needs {', '.join(missing)}, which the worker does not honour", features=", ".join(missing)
        )

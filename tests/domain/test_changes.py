"""The numbers that watchers go on from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.errors import SequenceCompacted
from warmshelfd.domain.changes import Changes


@given(st.lists(st.text(max_size=3), max_size=40), st.integers(1, 50), st.integers(-3, 60))
def test_what_is_told_after_a_number_is_what_was_noted_after_it_or_a_refusal(
    ids: list[str], kept: int, back: int
) -> None:
    changes = Changes(first_sequence=100, change_count_max=kept)
    for artifact_id in ids:
        changes.note(artifact_id)
    numbered = [(100 + i, artifact_id) for i, artifact_id in enumerate(ids, 1)]
    asked = changes.last_sequence - back
    if 0 <= back <= min(kept, len(ids)):
        assert list(changes.after(asked)) == [pair for pair in numbered if pair[0] > asked]
    else:
        with pytest.raises(SequenceCompacted) as caught:
            changes.after(asked)
        assert caught.value.details["sequence_number"] == asked


def test_a_number_of_an_earlier_daemon_is_compacted() -> None:
    earlier = Changes(first_sequence=10, change_count_max=5)
    earlier.note("a")
    later = Changes(first_sequence=1000, change_count_max=5)
    with pytest.raises(SequenceCompacted):
        later.after(earlier.last_sequence)

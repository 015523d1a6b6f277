"""What is remembered by the very objects it follows from."""

from __future__ import annotations

from warmshelfd.by_identity import ByIdentity


def test_it_is_found_by_the_same_objects_and_by_no_equal_ones() -> None:
    one, equal = [1], [1]
    kept: ByIdentity[str] = ByIdentity(4)
    assert kept.keep("of one", one) == "of one"
    assert kept.find(one) == "of one"
    assert kept.find(equal) is None
    assert kept.find(one, equal) is None


def test_the_latest_used_stay_and_objects_that_are_gone_are_never_mistaken() -> None:
    kept: ByIdentity[int] = ByIdentity(2)
    first, second, third = object(), object(), object()
    kept.keep(1, first)
    kept.keep(2, second)
    assert kept.find(first) == 1
    kept.keep(3, third)
    assert [kept.find(one) for one in (first, second, third)] == [1, None, 3]
    for number in range(100):  # each ends at once, but for the two that are held: their places in memory are not reused
        kept.keep(number, object())
        assert kept.find(object()) is None

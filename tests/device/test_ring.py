"""The ring and what is registered, on a device that does every copy as late as it may."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from kit.fake_device import FakeRuntime
from kit.models import pattern
from warmshelf import _device_ring as device
from warmshelf._device_ring import ALIGN_BYTES, PAGE_BYTES, Ring, registrations, upload, upload_registered
from warmshelf.errors import FeatureUnsupported, InvalidRequest
from warmshelf.layout import TensorSpec

SMALL = Ring(slot_bytes=1024, slot_count=3, thread_count=2)


class BrokenError(Exception):
    """What a test's device or source fails with."""


def named(*sizes: int) -> list[tuple[TensorSpec, memoryview]]:
    """Tensors of those sizes, one after another, each with bytes of its own."""
    found, offset = [], 0
    for number, size in enumerate(sizes):
        spec = TensorSpec(f"t{number}", "U8", (size,), offset, size)
        found.append((spec, memoryview(pattern(number, size))))
        offset += size
    return found


def check(found: dict[str, torch.Tensor], wanted: list[tuple[TensorSpec, memoryview]]) -> None:
    assert found.keys() == {spec.name for spec, _ in wanted}
    for spec, source in wanted:
        assert found[spec.name].numpy().tobytes() == source.tobytes(), spec.name


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (1,), (1024,), (1025,), (5000,), (300, 300, 300), (1024, 1, 1024), (0, 1000, 0, 4096, 7, 0), (9,) * 99],
    ids=str,
)
def test_what_is_on_the_device_is_what_was_there(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """B23: empty ones too, and those larger than a slot; each begins where a kernel may read it."""
    monkeypatch.setattr(device, "PART_BYTES", 100)
    runtime, wanted = FakeRuntime(), named(*sizes)
    found = upload(iter(wanted), runtime, SMALL)
    check(found, wanted)
    starts = {block.data_ptr() for block in runtime.blocks}
    for spec, _ in wanted:
        if spec.size_bytes:
            begin = found[spec.name].data_ptr()
            block = max(start for start in starts if start <= begin)
            assert (begin - block) % ALIGN_BYTES == 0


def test_slots_are_used_in_turn_and_again_only_when_the_device_has_read_them() -> None:
    runtime, wanted = FakeRuntime(), named(*[1024] * 10)
    check(upload(iter(wanted), runtime, SMALL), wanted)
    assert len(runtime.slots) == SMALL.slot_count
    first = runtime.addresses[:3]
    assert len(set(first)) == 3
    assert runtime.addresses == [first[i % 3] for i in range(10)]
    assert runtime.waited_for == list(range(7))  # the fourth waits for the first, and so on


def test_a_small_artifact_takes_one_slot_no_larger_than_it_needs() -> None:
    runtime, wanted = FakeRuntime(), named(100, 100)
    check(upload(iter(wanted), runtime, device.RING), wanted)
    assert [len(slot) for slot in runtime.slots] == [512]
    assert len(runtime.copies) == 1


def test_the_ring_is_at_least_three_slots_of_64_mib() -> None:
    assert device.RING.slot_count >= 3
    assert device.RING.slot_bytes >= 64 << 20
    assert device.RING.thread_count >= 2
    with pytest.raises(InvalidRequest, match="at least 3"):
        Ring(slot_count=2)


def test_what_has_arrived_is_sent_while_the_rest_is_on_its_way() -> None:
    """The source gives its third tensor only once the first is on its way to the device."""
    sent = threading.Event()
    runtime = FakeRuntime(before_copy=lambda count: sent.set())
    wanted = named(*[1024] * 6)

    def arriving() -> Iterator[tuple[TensorSpec, memoryview]]:
        yield from wanted[:5]
        assert sent.wait(5), "nothing was sent"
        yield wanted[5]

    check(upload(arriving(), runtime, SMALL), wanted)


def test_names_of_the_same_bytes_have_the_same_on_the_device() -> None:
    """B12."""
    (spec, source), other = named(512, 100)
    tied = TensorSpec("tied", spec.dtype, spec.shape, spec.offset_bytes, spec.size_bytes)
    bent = TensorSpec("bent", spec.dtype, (2, 256), spec.offset_bytes, spec.size_bytes)
    runtime = FakeRuntime()
    found = upload([(spec, source), other, (tied, source), (bent, source)], runtime, SMALL)
    check(found, [(spec, source), other, (tied, source), (bent, source)])
    assert found["tied"].data_ptr() == found["t0"].data_ptr() != found["bent"].data_ptr()


def test_when_a_copy_fails_the_device_reads_nothing_any_more() -> None:
    def fail(count: int) -> None:
        if count == 4:
            raise BrokenError

    runtime = FakeRuntime(before_copy=fail)
    before = threading.active_count()
    with pytest.raises(BrokenError):
        upload(iter(named(*[1024] * 9)), runtime, SMALL)
    assert runtime.finish_count == 1
    assert all(one.done for one in runtime.copies)
    assert threading.active_count() == before


def test_when_the_source_fails_so_does_the_copy() -> None:
    runtime = FakeRuntime()

    def arriving() -> Iterator[tuple[TensorSpec, memoryview]]:
        yield from named(*[1024] * 5)
        raise BrokenError

    with pytest.raises(BrokenError):
        upload(arriving(), runtime, SMALL)
    assert all(one.done for one in runtime.copies)
    assert runtime.finish_count == 1


def spec(name: str, begin: int, end: int) -> TensorSpec:
    return TensorSpec(name, "U8", (end - begin,), begin, end - begin)


PAGE = PAGE_BYTES


@pytest.mark.parametrize(
    ("places", "pages_max", "ranges"),
    [
        ([], 4, []),
        ([(PAGE + 5, PAGE + 5)], 4, []),
        ([(PAGE, 3 * PAGE)], 4, [(1, 3)]),
        ([(PAGE + 100, PAGE + 200)], 4, [(1, 2)]),
        ([(PAGE, 4 * PAGE), (4 * PAGE, 6 * PAGE)], 4, [(1, 4), (4, 6)]),  # at the edge, though a page more would fit
        ([(PAGE, 2 * PAGE + 9), (2 * PAGE + 64, 5 * PAGE)], 3, [(1, 3), (3, 5)]),  # the shared page is the first's
        ([(PAGE, 8 * PAGE)], 3, [(1, 4), (4, 7), (7, 8)]),  # longer than the limit
        ([(PAGE, 2 * PAGE), (2 * PAGE, 9 * PAGE), (9 * PAGE, 10 * PAGE)], 4, [(1, 2), (2, 6), (6, 10)]),
    ],
)
def test_ranges_are_cut_where_a_tensor_ends(
    places: list[tuple[int, int]], pages_max: int, ranges: list[tuple[int, int]]
) -> None:
    specs = [spec(str(i), *place) for i, place in enumerate(places)]
    assert registrations(specs, pages_max * PAGE) == [(PAGE * a, PAGE * b) for a, b in ranges]


def segment_of(places: list[tuple[int, int]]) -> tuple[torch.Tensor, list[TensorSpec]]:
    size = -(-places[-1][1] // PAGE) * PAGE
    memory = torch.frombuffer(bytearray(pattern(5, size + PAGE)), dtype=torch.uint8)
    skip = -memory.data_ptr() % PAGE
    return memory[skip : skip + size], [spec(str(i), *place) for i, place in enumerate(places)]


PLACES = [
    (PAGE, PAGE + 50),
    (PAGE + 64, 4 * PAGE + 9),
    (4 * PAGE + 64, 5 * PAGE),
    (5 * PAGE, 5 * PAGE),
    (6 * PAGE, 12 * PAGE),
]


@pytest.mark.parametrize("pages_max", [1, 2, 3, 5, 100])
def test_from_a_registered_mapping_every_byte_comes_and_no_copy_crosses_an_edge(pages_max: int) -> None:
    segment, specs = segment_of(PLACES)
    runtime = FakeRuntime()
    found = upload_registered(segment, specs, runtime, pages_max * PAGE)
    check(found, [(one, memoryview(segment.numpy())[one.offset_bytes : one.end_bytes]) for one in specs])
    assert (runtime.registered, runtime.slots) == ({}, [])
    assert max(runtime.register_sizes) <= pages_max * PAGE


def test_what_was_registered_is_not_when_the_driver_refuses_more() -> None:
    def refuse(count: int) -> None:
        if count == 2:
            raise RuntimeError("CUresult 2")

    runtime = FakeRuntime(before_register=refuse)
    with pytest.raises(FeatureUnsupported, match=r"cannot be registered: CUresult 2"):
        upload_registered(*segment_of(PLACES), runtime, 2 * PAGE)
    assert (len(runtime.register_sizes), runtime.registered, runtime.copies) == (2, {}, [])


def test_what_was_registered_is_not_when_a_copy_fails() -> None:
    def fail(count: int) -> None:
        if count == 3:
            raise BrokenError

    runtime = FakeRuntime(before_copy=fail)
    with pytest.raises(BrokenError):
        upload_registered(*segment_of(PLACES), runtime, 2 * PAGE)
    assert runtime.registered == {}
    assert all(one.done for one in runtime.copies)


def test_a_device_that_cannot_read_such_memory_is_asked_first() -> None:
    runtime = FakeRuntime(reads_read_only=False)
    with pytest.raises(FeatureUnsupported, match="mapped read-only"):
        upload_registered(*segment_of(PLACES), runtime)
    assert (runtime.register_sizes, runtime.blocks) == ([], [])

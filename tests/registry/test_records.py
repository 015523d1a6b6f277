"""Records: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.errors import InvalidSpec
from warmshelf.types import Inspection
from warmshelfd.registry.base import Registration
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.records import RECORD_BYTES_MAX, registration_from_json, registration_to_json


def test_any_registration_is_read_back_as_it_was(registrations: st.SearchStrategy[Registration]) -> None:
    @given(registrations)
    def prove(registration: Registration) -> None:
        assert registration_from_json(registration_to_json(registration)) == registration

    prove()


def test_every_field_is_in_the_record(full: Registration) -> None:
    def empty_fields(value: object) -> list[str]:
        if is_dataclass(value):
            kept = [f.name for f in fields(value) if f.name != "engine_verdicts"]  # these follow from the others
            return [name for name in kept if getattr(value, name) in ("", 0, None, ())] + [
                empty for name in kept for empty in empty_fields(getattr(value, name))
            ]
        return []

    assert empty_fields(full) == []
    assert registration_from_json(registration_to_json(full)) == full


def test_a_record_is_one_line_of_ascii_that_people_can_read(full: Registration) -> None:
    text = registration_to_json(full)
    assert text.isascii()
    assert "\n" not in text
    assert '"artifact_id":"acme/support-lora@v2"' in text


def test_a_record_of_a_release_that_knew_no_owed_hashes_is_read(full: Registration) -> None:
    assert registration_from_json(changed(full, "hashes_owed", ...)) == replace(full, hashes_owed=False)
    assert "hashes_owed" not in registration_to_json(replace(full, hashes_owed=False))


def test_a_record_of_a_release_that_pinned_no_small_files_is_read(full: Registration) -> None:
    assert registration_from_json(changed(full, "files_digest", ...)) == replace(full, files_digest="")
    assert "files_digest" not in registration_to_json(replace(full, files_digest=""))


def changed(full: Registration, path: str, value: object) -> str:
    record = json.loads(registration_to_json(full))
    *parents, last = path.split(".")
    at = record
    for parent in parents:
        at = at[parent]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("artifact_id", "../etc", "must begin with a letter"),
        ("artifact_id", "a\n", "must begin"),
        ("artifact_id", "", "is empty"),
        ("base_id", "a//b", "'//'"),
        ("generation", -1, "generation is not between"),
        ("generation", 2**63, "generation is not between"),
        ("generation", 1.0, "generation is not of type int"),
        ("generation", True, "generation is not of type int"),
        ("hashes_owed", 1, "hashes_owed is not of type bool"),
        ("generation", "1", "generation is not of type int"),
        ("generation", 10**30, "a number of 31 digits"),
        ("follow", 1, "follow is not of type bool"),
        ("digest", "blake3:xyz", "digest"),
        ("files_digest", "some", "digest"),
        ("files_digest", None, "files_digest is not of type str"),
        ("segment_id", "../" + "0" * 29, "segment_id"),
        ("kind", "model", "'model' is no ArtifactKind"),
        ("register_time", "yesterday", "register_time is no time"),
        ("register_time", "2025-01-01T00:00:00", "not in UTC"),
        ("register_time", "2025-01-01T00:00:00+01:00", "not in UTC"),
        ("source", [], "source is not an object"),
        ("source.uri", None, "uri is not of type str"),
        ("source.password", "x", "source has unknown fields: password"),
        ("inspection.file_names", "a", "file_names is not of type list"),
        ("inspection.file_names", [1], "file_names holds something that is not text"),
        ("inspection.tensor_count", ..., "inspection has no tensor_count"),
        ("inspection.adapter.adapter_number", 2**31, "adapter_number is not between"),
        ("inspection.adapter.base_check", "fine", "is no BaseCheck"),
        ("inspection.adapter.config_json", "%%%", "config_json is not base64"),
        ("schema", 2, "not of schema 1"),
        ("size_bytes", ..., "record has no size_bytes"),
        ("more", 1, "record has unknown fields: more"),
    ],
)
def test_a_record_with_a_field_it_cannot_have_is_refused_by_the_fields_name(
    full: Registration, path: str, value: object, why: str
) -> None:
    text = changed(full, path, value)
    as_ours = json.dumps(json.loads(text), separators=(",", ":"))  # what adapters have alike is read apart
    for one in (text, as_ours):
        with pytest.raises(BadRecord, match=why):
            registration_from_json(one)


def test_a_record_means_the_same_whoever_spelt_it(registrations: st.SearchStrategy[Registration]) -> None:
    @given(registrations)
    def prove(registration: Registration) -> None:
        record = json.loads(registration_to_json(registration))
        for spelt in (json.dumps(record), json.dumps(record, indent=1), json.dumps(dict(reversed(record.items())))):
            assert registration_from_json(spelt) == registration

    prove()


def test_what_ends_a_part_of_a_record_may_stand_in_its_texts(full: Registration) -> None:
    marks = ',"inspection":null,"fingerprint":"x","adapter_shapes":null}'
    assert full.inspection is not None
    inspection = replace(full.inspection, format_name=marks, file_names=('"adapter_number":7', marks))
    marked = replace(full, fingerprint=marks, inspection=inspection)
    assert registration_from_json(registration_to_json(marked)) == marked


@pytest.mark.parametrize("twice", ['"inspection":null', '"fingerprint":""', '"adapter_shapes":null'])
def test_a_record_that_has_a_part_twice_is_refused(full: Registration, twice: str) -> None:
    text = registration_to_json(full)
    for damaged in (f"{{{twice},{text[1:]}", f"{text[:-1]},{twice}}}"):
        with pytest.raises(BadRecord, match="twice"):
            registration_from_json(damaged)


def test_registrations_of_one_recipe_differ_in_their_numbers_alone(full: Registration) -> None:
    assert full.inspection is not None
    assert full.inspection.adapter is not None
    for number in (7, 0, 123456, 7):
        adapter = replace(full.inspection.adapter, adapter_number=number)
        one = replace(full, inspection=replace(full.inspection, adapter=adapter))
        assert registration_from_json(registration_to_json(one)) == one
    adapter = replace(full.inspection.adapter, adapter_number=-1)
    with pytest.raises(BadRecord):
        registration_to_json(replace(full, inspection=replace(full.inspection, adapter=adapter)))
    assert registration_from_json(registration_to_json(full)) == full


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON"),
        ("nonsense", "is not JSON"),
        ("[]", "record is not an object"),
        ('{"schema":1,"schema":1}', "a field twice"),
        ('{"schema":NaN}', "NaN is not a number"),
        ("[" * 100_000, "nested too deep"),
        (" " * (RECORD_BYTES_MAX + 1), "at most 16777216"),
    ],
    ids=["empty", "nonsense", "list", "twice", "nan", "deep", "long"],
)
def test_text_that_is_no_record_is_refused_with_the_reason(text: str, why: str) -> None:
    """B20: text from outside is refused before it costs anything."""
    with pytest.raises(BadRecord, match=why):
        registration_from_json(text)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_a_damaged_record_is_refused_or_read_but_never_worse(full: Registration) -> None:
    text = registration_to_json(full)
    keys = st.sampled_from(sorted(json.loads(text)))

    @given(keys, json_values, st.integers(0, len(text) - 1))
    def prove(key: str, value: object, cut: int) -> None:
        for damaged in (changed(full, key, value), text[:cut], text[:cut] + "0" + text[cut + 1 :]):
            try:
                read = registration_from_json(damaged)
            except BadRecord:
                continue
            assert registration_from_json(registration_to_json(read)) == read

    prove()


@pytest.mark.parametrize(
    "wrong",
    [
        {"register_time": datetime(2025, 1, 1)},  # noqa: DTZ001 - the fault
        {"register_time": datetime(2025, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
        {"generation": -1},
        {"segment_id": "x"},
        {"inspection": Inspection(file_names=["a list"])},  # type: ignore[arg-type]
    ],
)
def test_what_would_not_be_read_back_is_not_written(full: Registration, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRecord):
        registration_to_json(replace(full, **wrong))


def test_a_registration_larger_than_a_registry_keeps_is_refused_with_both_sizes(full: Registration) -> None:
    assert full.inspection is not None
    assert full.inspection.adapter is not None
    adapter = replace(full.inspection.adapter, config_json=bytes(13 << 20))
    large = replace(full, inspection=replace(full.inspection, adapter=adapter))
    with pytest.raises(InvalidSpec) as caught:
        registration_to_json(large)
    assert caught.value.details["record_bytes_max"] == RECORD_BYTES_MAX
    assert int(caught.value.details["record_bytes"]) > RECORD_BYTES_MAX


@pytest.mark.parametrize("key", ["inspection", "adapter_shapes"])
def test_a_record_that_lacks_the_text_of_a_field_is_no_json_and_no_record(full: Registration, key: str) -> None:
    record = json.loads(registration_to_json(full))
    cut = registration_to_json(full).replace(json.dumps(record[key], separators=(",", ":")), "", 1)
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut)
    with pytest.raises(BadRecord):
        registration_from_json(cut)

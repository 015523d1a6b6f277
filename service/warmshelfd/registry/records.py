"""A registration as JSON text, and back.

The text is for machines first and for people too. Reading it trusts nothing: a
record may come from a store that others can write to. It knows no store.
"""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from typing import TypeVar

from warmshelf.errors import InvalidId, InvalidSpec
from warmshelf.segment import is_segment_id
from warmshelf.types import AdapterInspection, ArtifactKind, ArtifactSpec, BaseCheck, Inspection, Source, check_id
from warmshelfd.by_identity import ByIdentity
from warmshelfd.domain.adapter_shapes import AdapterShapes, shapes_from_record, shapes_to_record
from warmshelfd.registry.base import Registration
from warmshelfd.registry.fields import BadRecord, Fields, value_of

RECORD_SCHEMA = 1
"""Rises when a record's fields change their meaning; other schemas are not read."""

NO_FILES = "none"
"""The digest of small files where there are none beside the config; short, for most adapters have none."""

RECORD_BYTES_MAX = 16 << 20
"""Longest record. Most of it is an adapter's config and module names: a few KB for plain
adapters, some 7 MB for one that names each of a large mixture's 91,000 tensors."""

_ADAPTER_NUMBER_MAX = (1 << 31) - 1  # what engines take
_E = TypeVar("_E", bound=Enum)
_RECIPES_MAX = 32
"""Adapters' shapes remembered: thousands are trained by a few recipes. Those of 91,000 modules have half a megabyte."""

_RECIPE_BYTES_MAX = 64 << 10
"""Longest text that is remembered with what it means; a plain adapter's have some KB."""

_INSPECTION_MARK, _INSPECTION_END, _SHAPES_MARK = ',"inspection":', ',"fingerprint":', ',"adapter_shapes":'
_NUMBER_MARK = '"adapter_number":'
_NULL = "null"

_SHAPES_TEXTS: ByIdentity[str] = ByIdentity(_RECIPES_MAX)
_INSPECTION_TEXTS: ByIdentity[tuple[str, str]] = ByIdentity(_RECIPES_MAX)
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DIGEST = re.compile(r"(blake3|sha256):[0-9a-f]{64}")


def registration_to_json(registration: Registration, *, is_proven: bool = False) -> str:
    """Return the registration as one line of ASCII; ``is_proven``: it is known to be read back the same.

    Raises:
        InvalidSpec: it takes more than a registry keeps.
        BadRecord: it would not be read back the same. Better refused now than lost at the next start.
    """
    bare = _ENCODER.encode(_record(registration))
    if registration.inspection is not None:
        before, mark, after = bare.partition(f"{_INSPECTION_MARK}null")
        bare = f"{before}{mark.removesuffix(_NULL)}{_inspection_text(registration.inspection)}{after}"
    shapes = registration.adapter_shapes
    text = bare if shapes is None else f"{bare.removesuffix('null}')}{_shapes_text(shapes)}}}"
    if len(text) > RECORD_BYTES_MAX:
        raise InvalidSpec(
            f"config and names of {registration.artifact_id!r} take {len(text)} bytes in the registry, "
            f"at most {RECORD_BYTES_MAX} are kept",
            record_bytes=len(text),
            record_bytes_max=RECORD_BYTES_MAX,
        )
    if not is_proven:
        _prove(registration, bare)
    return text


def _prove(registration: Registration, bare: str) -> None:
    """Raise BadRecord unless a record without its shapes, which are proven apart, is read back the same."""
    shapes = registration.adapter_shapes
    if registration_from_json(bare) != replace(registration, adapter_shapes=None):
        raise BadRecord(f"the record of {registration.artifact_id!r} would not be read back the same")
    if shapes is not None and shapes.module_names != _module_names(registration.inspection):
        raise BadRecord(f"the shapes of {registration.artifact_id!r} are of other modules than its own")


def registration_from_json(text: str) -> Registration:
    """Return the registration that the text is.

    Raises:
        BadRecord: it is none.
    """
    if len(text) > RECORD_BYTES_MAX:
        raise BadRecord(f"is {len(text)} long, at most {RECORD_BYTES_MAX} is read")
    bare, inspection, shapes = _split(text)
    if bare:
        with suppress(BadRecord):  # written by somebody else: read as a whole
            return _registration(Fields("record", value_of(bare)), inspection, shapes)
    return _registration(Fields("record", value_of(text)))


def _split(text: str) -> tuple[str, str, str]:
    """Return a record with null for its inspection and its shapes, and the texts of both; all "" if it has none.

    Adapters of one recipe have these alike, and nearly all of a record is in them. Where a record is JSON with
    null there, and each text is JSON by itself, the record is the JSON that has the texts there: a quote within
    a string would be escaped, so none of these marks is part of one.
    """
    head, mark, shapes = text.removesuffix("}").rpartition(_SHAPES_MARK)
    before, begin, rest = head.partition(_INSPECTION_MARK)
    inspection, end, after = rest.partition(_INSPECTION_END)
    if not (mark and begin and end and inspection and shapes and text.endswith("}")):
        return "", "", ""
    return f"{before}{begin}null{end}{after}{mark}null}}", inspection, shapes


# --- to JSON -----------------------------------------------------------------


def _record(r: Registration) -> dict[str, object]:
    return {
        "schema": RECORD_SCHEMA,
        "artifact_id": r.artifact_id,
        "source": {
            "uri": r.spec.source.uri,
            "revision": r.spec.source.revision,
            "expected_digest": r.spec.source.expected_digest,
        },
        "spec_kind": r.spec.kind.value,
        "base_id": r.spec.base_id,
        "kind": r.kind.value,
        "register_time": r.register_time.isoformat(),
        "keep_resident": r.keep_resident,
        "follow": r.follow,
        "inspection": None,  # its text comes in its place
        "fingerprint": r.fingerprint,
        "generation": r.generation,
        "digest": r.digest,
        "segment_id": r.segment_id,
        "size_bytes": r.size_bytes,
        **({"hashes_owed": True} if r.hashes_owed else {}),  # left out where it says nothing: older releases know none
        **({"files_digest": r.files_digest} if r.files_digest else {}),
        "adapter_shapes": None,  # the last: an adapter's text comes in its place
    }


def _shapes_text(shapes: AdapterShapes) -> str:
    """Return an adapter's shapes as JSON, once seen to be read back the same; adapters of one recipe share theirs."""
    text = _SHAPES_TEXTS.find(shapes)
    if text is not None:
        return text
    text = _ENCODER.encode(shapes_to_record(shapes))
    if shapes_from_record(json.loads(text), shapes.module_names) != shapes:
        raise BadRecord("the adapter's shapes would not be read back the same")
    return _SHAPES_TEXTS.keep(text, shapes)


def _inspection_text(i: Inspection) -> str:
    """Return an inspection as JSON; of adapters of one recipe only the number is not the same."""
    a = i.adapter
    if a is None:
        return _ENCODER.encode(_inspection_record(i))
    files = i.format_name, i.file_names, i.tensor_count, i.tensor_bytes
    same = *files, a.rank_max, a.module_names, a.features, a.base_check, a.unmatched_module_names, a.config_json
    around = _INSPECTION_TEXTS.find(*same)
    if around is None:
        unnumbered = replace(i, adapter=replace(a, adapter_number=0))
        before, mark, after = _ENCODER.encode(_inspection_record(unnumbered)).partition(_NUMBER_MARK)
        around = before + mark, after.removeprefix("0")
        if len(before) + len(after) <= _RECIPE_BYTES_MAX:
            _INSPECTION_TEXTS.keep(around, *same)
    return f"{around[0]}{a.adapter_number}{around[1]}"


def _inspection_record(i: Inspection) -> dict[str, object]:
    return {
        "format_name": i.format_name,
        "file_names": i.file_names,
        "tensor_count": i.tensor_count,
        "tensor_bytes": i.tensor_bytes,
        "adapter": None if i.adapter is None else _adapter_record(i.adapter),
    }


def _adapter_record(a: AdapterInspection) -> dict[str, object]:
    return {
        "adapter_number": a.adapter_number,
        "rank_max": a.rank_max,
        "module_names": a.module_names,
        "features": a.features,
        "base_check": a.base_check.value,
        "unmatched_module_names": a.unmatched_module_names,
        "config_json": base64.b64encode(a.config_json).decode("ascii"),
    }


# --- from JSON ---------------------------------------------------------------


def _registration(fields: Fields, inspection_text: str = "", shapes_text: str = "") -> Registration:
    """Return what a record means, with these texts for its inspection and shapes, if they were taken out of it."""
    if fields.number("schema") != RECORD_SCHEMA:
        raise BadRecord(f"is not of schema {RECORD_SCHEMA}")
    source = fields.object("source")
    inspection = _inspection(_text(fields, "inspection", inspection_text))
    registration = Registration(
        artifact_id=_artifact_id(fields.text("artifact_id")),
        spec=ArtifactSpec(
            source=_source(source),
            kind=_enum(ArtifactKind, fields.text("spec_kind")),
            base_id=_artifact_id(fields.text("base_id"), may_be_empty=True),
        ),
        kind=_enum(ArtifactKind, fields.text("kind")),
        register_time=_utc(fields.text("register_time")),
        keep_resident=fields.flag("keep_resident"),
        follow=fields.flag("follow"),
        inspection=inspection,
        adapter_shapes=_adapter_shapes(_text(fields, "adapter_shapes", shapes_text), _module_names(inspection)),
        fingerprint=fields.text("fingerprint"),
        generation=fields.number("generation"),
        digest=_digest(fields.text("digest")),
        segment_id=_segment_id(fields.text("segment_id")),
        size_bytes=fields.number("size_bytes"),
        hashes_owed=fields.has("hashes_owed") and fields.flag("hashes_owed"),
        files_digest=_files_digest(fields.text("files_digest")) if fields.has("files_digest") else "",
    )
    fields.end()
    return registration


def _text(fields: Fields, key: str, cut: str) -> str:
    """Return the JSON of a field, which may have been cut out of the record."""
    value = fields.value(key)
    if cut and value is not None:
        raise BadRecord(f"has {key} in two places")
    try:
        return cut or json.dumps(value)
    except RecursionError:
        raise BadRecord("is nested too deep") from None


def _files_digest(text: str) -> str:
    return text if text == NO_FILES else _digest(text)


def _source(fields: Fields) -> Source:
    source = Source(fields.text("uri"), fields.text("revision"), _digest(fields.text("expected_digest")))
    fields.end()
    return source


def _adapter_shapes(text: str, names: tuple[str, ...]) -> AdapterShapes | None:
    if text == _NULL:
        return None
    return _shapes(text, names) if len(text) <= _RECIPE_BYTES_MAX else _shapes.__wrapped__(text, names)


@lru_cache(maxsize=_RECIPES_MAX)
def _shapes(text: str, names: tuple[str, ...]) -> AdapterShapes:
    """Return the shapes that a text means with these names; adapters of one recipe share the object."""
    try:
        shapes = shapes_from_record(value_of(text), names)
    except ValueError as error:
        raise BadRecord(str(error)) from None
    if shapes.module_names != names:
        raise BadRecord("the adapter's shapes are of other modules than its own")
    return shapes


def _module_names(inspection: Inspection | None) -> tuple[str, ...]:
    return inspection.adapter.module_names if inspection and inspection.adapter else ()


def _inspection(text: str) -> Inspection | None:
    if text == _NULL:
        return None
    return _inspected(text) if len(text) <= _RECIPE_BYTES_MAX else _inspected.__wrapped__(text)


@lru_cache(maxsize=_RECIPES_MAX)
def _inspected(text: str) -> Inspection:
    """Return the inspection that a text means; adapters of one recipe share the object."""
    fields = Fields("inspection", value_of(text))
    inspection = Inspection(
        format_name=fields.text("format_name"),
        file_names=fields.texts("file_names"),
        tensor_count=fields.number("tensor_count"),
        tensor_bytes=fields.number("tensor_bytes"),
        adapter=None if fields.is_null("adapter") else _adapter(fields.object("adapter")),
    )
    fields.end()
    return inspection


def _adapter(fields: Fields) -> AdapterInspection:
    adapter = AdapterInspection(
        adapter_number=fields.number("adapter_number", _ADAPTER_NUMBER_MAX),
        rank_max=fields.number("rank_max"),
        module_names=fields.texts("module_names"),
        features=fields.texts("features"),
        base_check=_enum(BaseCheck, fields.text("base_check")),
        unmatched_module_names=fields.texts("unmatched_module_names"),
        config_json=_bytes(fields.text("config_json")),
    )
    fields.end()
    return adapter


def _artifact_id(text: str, *, may_be_empty: bool = False) -> str:
    if may_be_empty and not text:
        return ""
    try:
        return check_id(text)
    except InvalidId as error:
        raise BadRecord(error.message) from None


def _segment_id(text: str) -> str:
    if text and not is_segment_id(text):
        raise BadRecord("segment_id is none")
    return text


def _digest(text: str) -> str:
    if text and not _DIGEST.fullmatch(text):
        raise BadRecord("a digest is neither empty nor blake3:hex or sha256:hex")
    return text


def _enum(kind: type[_E], text: str) -> _E:
    try:
        return kind(text)
    except ValueError:
        raise BadRecord(f"{text[:20]!r} is no {kind.__name__}") from None


def _utc(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadRecord("register_time is no time") from None
    if time.utcoffset() != timedelta(0):
        raise BadRecord("register_time is not in UTC")
    return time.replace(tzinfo=timezone.utc)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadRecord("config_json is not base64") from None

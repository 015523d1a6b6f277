"""A registration as JSON text, and back.

The text is for machines first and for people too. Reading it trusts nothing: a
record may come from a store that others can write to. It knows no store.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

from warmshelf.errors import InvalidId, InvalidSpec
from warmshelf.segment import is_segment_id
from warmshelf.types import AdapterInspection, ArtifactKind, ArtifactSpec, BaseCheck, Inspection, Source, check_id
from warmshelfd.by_identity import ByIdentity
from warmshelfd.domain.adapter_shapes import AdapterShapes, shapes_from_record, shapes_to_record
from warmshelfd.registry.base import Registration

RECORD_SCHEMA = 1
"""Rises when a record's fields change their meaning; other schemas are not read."""

NO_FILES = "none"
"""The digest of small files where there are none beside the config; short, for most adapters have none."""

RECORD_BYTES_MAX = 16 << 20
"""Longest record. Most of it is an adapter's config and module names: a few KB for plain
adapters, some 7 MB for one that names each of a large mixture's 91,000 tensors."""

_INT64_MAX = (1 << 63) - 1  # what the wire and SQLite carry
_INT_DIGITS_MAX = 20  # of -2^63; the time to read a number grows with the square of its digits
_ADAPTER_NUMBER_MAX = (1 << 31) - 1  # what engines take
_E = TypeVar("_E", bound=Enum)
_RECIPES_MAX = 32
"""Adapters' shapes remembered: thousands are trained by a few recipes. Those of 91,000 modules have half a megabyte."""

_SHAPES_TEXTS: ByIdentity[str] = ByIdentity(_RECIPES_MAX)
_DIGEST = re.compile(r"(blake3|sha256):[0-9a-f]{64}")


class BadRecord(ValueError):  # noqa: N818 - it names what was found
    """The text is no registration; says why."""


def registration_to_json(registration: Registration, *, is_proven: bool = False) -> str:
    """Return the registration as one line of ASCII; ``is_proven``: it is known to be read back the same.

    Raises:
        InvalidSpec: it takes more than a registry keeps.
        BadRecord: it would not be read back the same. Better refused now than lost at the next start.
    """
    bare = json.dumps(_record(registration), separators=(",", ":"))
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
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_int, parse_constant=_refuse)
    except RecursionError:
        raise BadRecord("is nested too deep") from None
    except json.JSONDecodeError as error:
        raise BadRecord(f"is not JSON: {error}") from None
    return _registration(_Fields("record", value))


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
        "inspection": None if r.inspection is None else _inspection_record(r.inspection),
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
    text = json.dumps(shapes_to_record(shapes), separators=(",", ":"))
    if shapes_from_record(json.loads(text), shapes.module_names) != shapes:
        raise BadRecord("the adapter's shapes would not be read back the same")
    return _SHAPES_TEXTS.keep(text, shapes)


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


def _registration(fields: _Fields) -> Registration:
    if fields.number("schema") != RECORD_SCHEMA:
        raise BadRecord(f"is not of schema {RECORD_SCHEMA}")
    source = fields.object("source")
    inspection = _inspection(fields)
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
        adapter_shapes=_adapter_shapes(fields, inspection),
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


def _files_digest(text: str) -> str:
    return text if text == NO_FILES else _digest(text)


def _source(fields: _Fields) -> Source:
    source = Source(fields.text("uri"), fields.text("revision"), _digest(fields.text("expected_digest")))
    fields.end()
    return source


def _adapter_shapes(record: _Fields, inspection: Inspection | None) -> AdapterShapes | None:
    if record.is_null("adapter_shapes"):
        return None
    return _shapes(json.dumps(record.value("adapter_shapes")), _module_names(inspection))


@lru_cache(maxsize=_RECIPES_MAX)
def _shapes(text: str, names: tuple[str, ...]) -> AdapterShapes:
    """Return the shapes that a text means with these names; adapters of one recipe share the object."""
    try:
        shapes = shapes_from_record(json.loads(text), names)
    except ValueError as error:
        raise BadRecord(str(error)) from None
    if shapes.module_names != names:
        raise BadRecord("the adapter's shapes are of other modules than its own")
    return shapes


def _module_names(inspection: Inspection | None) -> tuple[str, ...]:
    return inspection.adapter.module_names if inspection and inspection.adapter else ()


def _inspection(record: _Fields) -> Inspection | None:
    if record.is_null("inspection"):
        return None
    fields = record.object("inspection")
    inspection = Inspection(
        format_name=fields.text("format_name"),
        file_names=fields.texts("file_names"),
        tensor_count=fields.number("tensor_count"),
        tensor_bytes=fields.number("tensor_bytes"),
        adapter=None if fields.is_null("adapter") else _adapter(fields.object("adapter")),
    )
    fields.end()
    return inspection


def _adapter(fields: _Fields) -> AdapterInspection:
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


class _Fields:
    """The fields of one JSON object: each is taken once, by name and type, and none may be left over."""

    def __init__(self, name: str, value: object) -> None:
        if not isinstance(value, dict):
            raise BadRecord(f"{name} is not an object")
        self._name = name
        self._fields: dict[str, Any] = value

    def _take(self, key: str) -> Any:
        if key not in self._fields:
            raise BadRecord(f"{self._name} has no {key}")
        return self._fields.pop(key)

    def _taken(self, key: str, kind: type) -> Any:
        value = self._take(key)
        if type(value) is not kind:  # not isinstance: true is no number
            raise BadRecord(f"{key} is not of type {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        return str(self._taken(key, str))

    def has(self, key: str) -> bool:
        return key in self._fields

    def flag(self, key: str) -> bool:
        return bool(self._taken(key, bool))

    def number(self, key: str, number_max: int = _INT64_MAX) -> int:
        number = int(self._taken(key, int))
        if not 0 <= number <= number_max:
            raise BadRecord(f"{key} is not between 0 and {number_max}")
        return number

    def texts(self, key: str) -> tuple[str, ...]:
        items = self._taken(key, list)
        if not all(type(item) is str for item in items):
            raise BadRecord(f"{key} holds something that is not text")
        return tuple(items)

    def is_null(self, key: str) -> bool:
        if key in self._fields and self._fields[key] is None:
            del self._fields[key]
            return True
        return False

    def value(self, key: str) -> object:
        return self._take(key)

    def object(self, key: str) -> _Fields:
        return _Fields(key, self._take(key))

    def end(self) -> None:
        if self._fields:
            raise BadRecord(f"{self._name} has unknown fields: {', '.join(sorted(self._fields))[:200]}")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise BadRecord("has a field twice")
    return value


def _int(digits: str) -> int:
    if len(digits) > _INT_DIGITS_MAX:
        raise BadRecord(f"has a number of {len(digits)} digits")
    return int(digits)


def _refuse(constant: str) -> object:
    raise BadRecord(f"{constant} is not a number")


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

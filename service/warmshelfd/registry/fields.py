"""JSON that anybody may have written, taken apart field by field.

Nothing may be there twice, be unknown, or be of another type. Knows no record.
"""

from __future__ import annotations

import json
from typing import Any

INT64_MAX = (1 << 63) - 1
"""What the wire and SQLite carry."""

_INT_DIGITS_MAX = 20  # of -2^63; the time to read a number grows with the square of its digits


class BadRecord(ValueError):  # noqa: N818 - it names what was found
    """The text is no registration; says why."""


def value_of(text: str) -> object:
    """Return what JSON text means.

    Raises:
        BadRecord: it is none, or has a field twice, or a number that is none of ours.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise BadRecord("is nested too deep") from None
    except json.JSONDecodeError as error:
        raise BadRecord(f"is not JSON: {error}") from None


class Fields:
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
        """Take text."""
        return str(self._taken(key, str))

    def has(self, key: str) -> bool:
        """Say whether there is such a field."""
        return key in self._fields

    def flag(self, key: str) -> bool:
        """Take true or false."""
        return bool(self._taken(key, bool))

    def number(self, key: str, number_max: int = INT64_MAX) -> int:
        """Take a whole number that is not negative."""
        number = int(self._taken(key, int))
        if not 0 <= number <= number_max:
            raise BadRecord(f"{key} is not between 0 and {number_max}")
        return number

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of texts."""
        items = self._taken(key, list)
        if not all(type(item) is str for item in items):
            raise BadRecord(f"{key} holds something that is not text")
        return tuple(items)

    def is_null(self, key: str) -> bool:
        """Say whether a field is null, and take it if so."""
        if key in self._fields and self._fields[key] is None:
            del self._fields[key]
            return True
        return False

    def value(self, key: str) -> object:
        """Take whatever it is."""
        return self._take(key)

    def object(self, key: str) -> Fields:
        """Take an object."""
        return Fields(key, self._take(key))

    def end(self) -> None:
        """Refuse what is left over."""
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


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_int, parse_constant=_refuse)

"""Enumerations whose values are text, as ``enum.StrEnum`` makes them from Python 3.11 on."""

from __future__ import annotations

from enum import Enum


class StrEnum(str, Enum):
    """Its members are equal to their values and print as they do."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, form: str) -> str:
        return format(str(self.value), form)

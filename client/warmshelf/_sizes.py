"""How amounts of bytes are written, by people and for people.

Knows no option and no artifact.
"""

from __future__ import annotations

import re

_INT64_MAX = (1 << 63) - 1
_DECIMAL = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS = _DECIMAL | _BINARY
_SIZE = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,6}))?\s*([A-Za-z]*)")
_UNIT_BYTES = 1024
_SHOWN_UNITS = ("B", *_BINARY)


def parse_size(value: object) -> int:
    """Return the bytes of ``64GiB``, ``1.5MiB``, ``500MB`` or a plain number."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, (str, int)) and value is not True else None
    if match is None or match[3] not in _UNITS:
        raise ValueError("a size is a number with or without a unit, such as 64GiB, 512MiB, 1000MB or 4096")
    digits = match[2] or ""
    scale: int = 10 ** len(digits)
    size, rest = divmod(int(match[1] + digits) * _UNITS[match[3]], scale)
    if rest or size > _INT64_MAX:
        raise ValueError("a size is a whole number of bytes below 2^63")
    return size


def show_size(size_bytes: float) -> str:
    """Return a size for people, such as ``1.5 GiB``."""
    value, unit = float(size_bytes), _SHOWN_UNITS[0]
    for unit in _SHOWN_UNITS:
        if value < _UNIT_BYTES or unit == _SHOWN_UNITS[-1]:
            break
        value /= _UNIT_BYTES
    return f"{size_bytes:.0f} B" if unit == "B" else f"{value:.1f} {unit}"

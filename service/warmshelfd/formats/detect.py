"""Says which format a source's files are in, by their names, and has it read them."""

from __future__ import annotations

from collections.abc import Sequence

from warmshelf.errors import UnsupportedFormat
from warmshelfd.formats.base import Files, Format, FormatLimits, Inspected
from warmshelfd.formats.peft import PeftFormat
from warmshelfd.formats.pickled import PICKLED_SUFFIXES, SNIFF_BYTES, refuse_pickled
from warmshelfd.formats.safetensors import SafetensorsFormat
from warmshelfd.formats.tensorizer import TensorizerFormat

FORMATS: Sequence[Format] = (PeftFormat(), SafetensorsFormat(), TensorizerFormat())
"""Every format, the first that matches decides."""

FORMAT_NAMES = tuple(one.name for one in FORMATS)
"""Of the formats that can be loaded."""


def detect(files: Files, limits: FormatLimits) -> Inspected:
    """Read the headers of the files in the format that their names show.

    Raises:
        UnsupportedFormat: there is no such format; for a pickle the message has the
            command that converts it.
        WarmshelfError: whatever ``Format.inspect`` raises.
    """
    names = files.files()
    for one in FORMATS:
        if one.matches(names):
            return one.inspect(files, limits)
    for name in sorted(names):
        if name.endswith(PICKLED_SUFFIXES) or len(names) == 1:
            refuse_pickled(name, files.read(name, 0, min(names[name], SNIFF_BYTES)))
    raise UnsupportedFormat(f"none of the {len(names)} files ends in .safetensors or .tensors", file_count=len(names))

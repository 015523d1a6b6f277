"""Says which format a source's files are in, by their names, and has it read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from warmshelf.errors import UnsupportedFormat
from warmshelfd.formats.base import Files, Format, FormatLimits, Inspected, Range
from warmshelfd.formats.peft import WEIGHTS, PeftFormat
from warmshelfd.formats.peft_config import CONFIG_NAME
from warmshelfd.formats.pickled import PICKLED_SUFFIXES, SNIFF_BYTES, refuse_pickled
from warmshelfd.formats.safetensors import SafetensorsFormat
from warmshelfd.formats.tensorizer import TensorizerFormat

FORMATS: Sequence[Format] = (PeftFormat(), SafetensorsFormat(), TensorizerFormat())
"""Every format, the first that matches decides."""

FORMAT_NAMES = tuple(one.name for one in FORMATS)
"""Of the formats that can be loaded."""


_HEADS: Mapping[str, int] = {
    ".safetensors": 256 << 10,  # the header of a shard has 3 to 70 KB
    ".tensors": 288 << 10,  # an index of 256 KiB, filled up with zeros, and the first headers
    ".index.json": 256 << 10,
}
"""How much of a file's beginning is worth reading unseen, by how its name ends."""

_ADAPTER_HEADS = {"adapter_config.json": 64 << 10, **dict.fromkeys(WEIGHTS, 256 << 10)}


def first_reads(names: Mapping[str, int]) -> Iterator[Range]:
    """Yield what any format looks at first, so that it can be read at once: a hint that promises nothing."""
    if CONFIG_NAME in names:
        yield from ((name, 0, head) for name, head in _ADAPTER_HEADS.items() if name in names)
        return
    for name in names:
        head = next((head for suffix, head in _HEADS.items() if name.endswith(suffix)), 0)
        if head:
            yield name, 0, head


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
    if not names:
        raise UnsupportedFormat("the source has no files", file_count=0)
    raise UnsupportedFormat(f"none of the {len(names)} files ends in .safetensors or .tensors", file_count=len(names))

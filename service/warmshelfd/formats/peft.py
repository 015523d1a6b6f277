"""The PEFT format: a directory with the config and the weights of one LoRA adapter.

The weights are the first of these that is there, whatever else is:

1. ``adapter_model.safetensors``
2. ``adapter_model.tensors``

Each is read by its own format, which sees that file alone. ``adapter_model.bin`` is a
pickle and never opened. What the config says is read in ``peft_config``, what the
tensors' names say in ``peft_names``, and what both come to in ``peft_tensors``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from warmshelf.errors import ConfigMissing, MalformedArtifact, SourceNotFound, UnsupportedFormat
from warmshelf.types import ArtifactKind
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Files, Format, FormatLimits, Inspected, Range, expect
from warmshelfd.formats.peft_config import CONFIG_NAME, parse_config, read_config
from warmshelfd.formats.peft_tensors import inspect_tensors
from warmshelfd.formats.pickled import conversion_command
from warmshelfd.formats.safetensors import SafetensorsFormat, small_files
from warmshelfd.formats.tensorizer import TensorizerFormat

_STEM = "adapter_model."
_PICKLED = "adapter_model.bin"
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".tensors")

WEIGHTS: Mapping[str, Format] = {
    "adapter_model.safetensors": SafetensorsFormat(),
    "adapter_model.tensors": TensorizerFormat(),
}
"""Which file holds the weights, the first that is there, and the format that reads it."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """What an adapter's files may ask for, where that is less than ``FormatLimits`` gives a base."""

    config_bytes_max: int = 64 << 10
    """Longest ``adapter_config.json``; plain ones have 1 KB, ranks for each module of 80 layers take 25 KB."""
    header_bytes_max: int = 32 << 20
    """Longest header of the weights; a pair for each of a large mixture's 91,000 modules takes 24 MB."""
    tensor_count_max: int = 1 << 18
    """Most tensors; those pairs are 182,000."""
    element_count_max: int = 1 << 34
    """Product of a tensor's dimensions; the largest are whole embeddings, of some 2**31."""
    tensor_bytes_max: int = 16 << 30
    """All tensors together; two embeddings of 262,144 tokens and 8,192 columns take 16 GiB in F32."""
    metadata_bytes_max: int = 64 << 10
    """Most bytes in free-form metadata; PEFT writes 15."""


class PeftFormat(Format):
    """A LoRA adapter as PEFT's ``save_pretrained`` writes it."""

    name = "peft"

    def __init__(self, weights: Mapping[str, Format] = WEIGHTS, limits: AdapterLimits | None = None) -> None:
        self._weights = weights
        self._limits = limits or AdapterLimits()

    def matches(self, files: Mapping[str, int]) -> bool:
        """Say whether there is an adapter's config, or an adapter's weights and no others."""
        if CONFIG_NAME in files:
            return True
        weights = [name for name in files if name.endswith(_WEIGHT_SUFFIXES)]
        return any(name in self._weights for name in weights) and all(name.startswith(_STEM) for name in weights)

    def inspect(self, files: Files, limits: FormatLimits) -> Inspected:
        """Read the config and the weights' header, and check that the tensors make an adapter.

        Raises:
            MalformedArtifact, SourceTruncated, UnsupportedDtype: as every format; also where
                tensors make no LoRA pairs.
            ConfigMissing: there are weights of an adapter and no config.
            SourceNotFound: there is a config and no weights.
            UnsupportedFormat: it is no LoRA adapter, or its weights are a pickle; names the
                command that converts those.
        """
        names = files.files()
        if CONFIG_NAME not in names:
            raise ConfigMissing(f"{CONFIG_NAME} is missing beside the adapter's weights", file=CONFIG_NAME)
        config_json = read_config(files, self._limits.config_bytes_max)
        config = parse_config(config_json)
        weights = self._read_weights(files, limits)
        (file,) = weights.file_names
        tensors = inspect_tensors(file, {entry.name: entry.shape for entry in weights.entries}, config)
        return Inspected(
            kind=ArtifactKind.ADAPTER,
            format_name=self.name,
            file_names=weights.file_names,
            entries=weights.entries,
            small_files=small_files(names, limits),
            adapter=tensors.inspection(config_json),
            adapter_shapes=tensors.shapes,
            checks=weights.checks,
            encryption=weights.encryption,
        )

    def _read_weights(self, files: Files, limits: FormatLimits) -> Inspected:
        """Have the weights file read by its format, within the limits of an adapter."""
        names = files.files()
        file = next((name for name in self._weights if name in names), None)
        if file is None:
            raise _no_weights(names, list(self._weights))
        weights = self._weights[file].inspect(_OneFile(files, file), self._narrowed(limits))
        _check_size(file, weights.entries, self._limits.tensor_bytes_max)
        return weights

    def _narrowed(self, limits: FormatLimits) -> FormatLimits:
        own = self._limits
        return dataclasses.replace(
            limits,
            header_bytes_max=min(limits.header_bytes_max, own.header_bytes_max),
            tensor_count_max=min(limits.tensor_count_max, own.tensor_count_max),
            element_count_max=min(limits.element_count_max, own.element_count_max),
            metadata_bytes_max=min(limits.metadata_bytes_max, own.metadata_bytes_max),
        )


@dataclass(frozen=True, slots=True)
class _OneFile:
    """One file of a source, as if there were no others."""

    whole: Files
    name: str

    def files(self) -> Mapping[str, int]:
        return {self.name: self.whole.files()[self.name]}

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self.whole.read(name, offset, size)

    def expect(self, ranges: Iterable[Range]) -> None:
        expect(self.whole, ranges)


def _no_weights(names: Mapping[str, int], wanted: Sequence[str]) -> SourceNotFound | UnsupportedFormat:
    if _PICKLED in names:
        return UnsupportedFormat(
            f"{_PICKLED} is a pickle, which could run code and is never opened. "
            f"If you trust it, convert it: {conversion_command(_PICKLED)}",
            file=_PICKLED,
        )
    return SourceNotFound(f"{CONFIG_NAME} is there, and neither {' nor '.join(wanted)}", file=wanted[0])


def _check_size(file: str, entries: Sequence[TensorEntry], bytes_max: int) -> None:
    size = sum(entry.size_bytes for entry in entries)
    if size > bytes_max:
        raise MalformedArtifact(
            f"{file}: the tensors have {size} bytes, an adapter's may have {bytes_max}", file=file, size_bytes=size
        )

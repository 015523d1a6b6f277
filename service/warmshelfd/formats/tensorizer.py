"""The tensorizer format: which ``.tensors`` file of a source holds the tensors, and what it says.

Which file, in this order; the first that applies decides:

1. ``model.tensors``, whatever is beside it.
2. The only ``*.tensors`` file.

Anything else is refused by name: the parts that the ranks of a parallel engine write
(``model-rank-000.tensors``), and several files of which none is meant more than another.

The file's index is read in ``tensorizer_index``, the tensors' headers in
``tensorizer_headers``. Names are kept as they stand: those of a module's own
parameters begin with a dot, and a tensor that two modules share is there twice; of
which ``tensorizer_tied`` finds an output layer that is the input embedding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from warmshelf.errors import UnsupportedFormat
from warmshelf.types import ArtifactKind
from warmshelfd.formats.base import Files, Format, FormatLimits, Inspected
from warmshelfd.formats.safetensors import small_files
from warmshelfd.formats.tensorizer_fields import malformed
from warmshelfd.formats.tensorizer_headers import read_headers
from warmshelfd.formats.tensorizer_index import check_rows, read_index
from warmshelfd.formats.tensorizer_tied import with_ties

_SUFFIX = ".tensors"
_WHOLE = "model.tensors"
_RANKED = re.compile(r".*-rank-[0-9]+\.tensors", re.DOTALL)


class TensorizerFormat(Format):
    """One ``.tensors`` file, plain or encrypted, as CoreWeave's tensorizer 2 writes it, alone or in a directory."""

    name = "tensorizer"

    def matches(self, files: Mapping[str, int]) -> bool:
        """Say whether there is such a file."""
        return any(name.endswith(_SUFFIX) for name in files)

    def inspect(self, files: Files, limits: FormatLimits) -> Inspected:
        """Read the index and every header; the checks are the hashes that these hold."""
        names = files.files()
        file = _chosen(names)
        index = read_index(files, file, limits)
        entries = check_rows(index, names[file], limits)
        if not entries:
            raise malformed(file, "no tensors")
        hashes, encryption = read_headers(files, index, entries, limits)
        return Inspected(
            kind=ArtifactKind.BASE,
            format_name=self.name,
            file_names=(file,),
            entries=with_ties(files, entries, hashes),
            small_files=small_files(names, limits),
            checks=hashes,
            encryption=encryption,
        )


def _chosen(names: Collection[str]) -> str:
    if _WHOLE in names:
        return _WHOLE
    found = sorted(name for name in names if name.endswith(_SUFFIX))
    ranked = next(filter(_RANKED.fullmatch, found), None)
    if ranked is not None:
        raise UnsupportedFormat(
            f"{ranked} is one rank's part of a model, which this release does not read", file=ranked
        )
    if len(found) > 1:
        raise UnsupportedFormat(
            f"{found[0]} and {len(found) - 1} more end in {_SUFFIX}, and none is named {_WHOLE}",
            file=found[0],
            file_count=len(found),
        )
    return found[0]

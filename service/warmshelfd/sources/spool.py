"""What clients have pushed, as a source: the files of one push, in the directory where the spool keeps them.

Only the daemon itself registers such a source, for the artifact that was pushed: nobody
reaches what another one pushed by naming it. Reads it as ``file`` reads files.
"""

from __future__ import annotations

import re

from warmshelf.errors import InvalidSpec, SourceNotAllowed
from warmshelfd.sources.base import OpenSource, SourceOpener
from warmshelfd.sources.file import FileSource
from warmshelfd.sources.resolve import Prefixes

_URI = re.compile(r"spool://([0-9a-f]{32})")


class SpoolOpener(SourceOpener):
    """Opens what was pushed."""

    scheme = "spool"

    def __init__(self, kept_directory: str) -> None:
        self._directory = kept_directory

    def canonical(self, uri: str) -> str:  # noqa: ARG002 - whichever it is
        """Refuse: what was pushed belongs to the ID that it was pushed as."""
        raise SourceNotAllowed("what was pushed belongs to the ID it was pushed as, no other can be registered for it")

    def open(self, uri: str, revision: str = "") -> OpenSource:
        """List the files of a push."""
        match = _URI.fullmatch(uri)
        if match is None or revision:
            raise InvalidSpec(f"{uri[:64]!r} is nothing that was pushed")
        # Made at each opening: the directory may have come, or been mounted, after the start.
        source = FileSource(Prefixes([self._directory]), f"{self._directory}/{match[1]}/files")
        source.uri = uri
        return source

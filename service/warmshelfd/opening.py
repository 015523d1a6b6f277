"""Which kinds of source there are: an opener for each scheme that this installation can read.

Knows every kind by its module and none by its inside. A kind whose library is not
installed is left out; asking for it is an error that names the extra.
"""

from __future__ import annotations

from collections.abc import Mapping

from warmshelfd.settings import Settings
from warmshelfd.sources.base import SourceOpener
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.spool import SpoolOpener
from warmshelfd.spool.base import Spool
from warmshelfd.spool.directory import DirectorySpool


def openers(settings: Settings) -> Mapping[str, SourceOpener]:
    """Return the openers by scheme; each knows what it may open."""
    file_prefixes = [prefix for prefix in settings.allow_source if _scheme(prefix) == "file"]
    return {"file": FileOpener(file_prefixes), "spool": SpoolOpener(DirectorySpool(settings.spool).kept_directory)}


def open_spool(settings: Settings) -> Spool:
    """Return the spool that the settings name; it is opened later. Further kinds of spool are chosen here."""
    return DirectorySpool(settings.spool)


def _scheme(prefix: str) -> str:
    return prefix.partition("://")[0].lower() if "://" in prefix else "file"

"""Which kinds of source there are: an opener for each scheme that this installation can read.

Knows every kind by its module and none by its inside. A kind whose library is not
installed is left out; asking for it is an error that names the extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from warmshelf.redis_uri import SCHEMES
from warmshelfd.formats.tensorizer_pieces import tensor_pieces
from warmshelfd.settings import Settings
from warmshelfd.sources.base import SourceOpener
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.redis import RedisOpener
from warmshelfd.sources.spool import SpoolOpener
from warmshelfd.spool.base import Spool
from warmshelfd.spool.directory import DirectorySpool


def openers(settings: Settings) -> Mapping[str, SourceOpener]:
    """Return the openers by scheme; each knows what it may open."""
    return {
        "file": FileOpener(_of_scheme(settings, "file")),
        "spool": SpoolOpener(DirectorySpool(settings.spool).kept_directory),
        **{scheme: _redis(settings, scheme) for scheme in SCHEMES},
    }


def open_spool(settings: Settings) -> Spool:
    """Return the spool that the settings name; it is opened later. Further kinds of spool are chosen here."""
    return DirectorySpool(settings.spool)


def _redis(settings: Settings, scheme: str) -> RedisOpener:
    find_pieces = partial(tensor_pieces, limits=settings.format_limits())
    return RedisOpener(scheme, _of_scheme(settings, scheme), settings.source, find_pieces)


def _of_scheme(settings: Settings, scheme: str) -> list[str]:
    return [prefix for prefix in settings.allow_source if _scheme(prefix) == scheme]


def _scheme(prefix: str) -> str:
    return prefix.partition("://")[0].lower() if "://" in prefix else "file"

"""Which kinds of source there are: an opener for each scheme that this installation can read.

Knows every kind by its module and none by its inside. A kind whose library is not
installed is left out; asking for it is an error that names the extra.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from importlib.util import find_spec

from warmshelf.errors import InvalidConfig, InvalidSpec
from warmshelf.redis_uri import SCHEMES
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.tensorizer_pieces import tensor_pieces
from warmshelfd.formats.weights_index import read_weight_map
from warmshelfd.settings import Settings
from warmshelfd.sources.base import SourceOpener
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.http import Files, HttpOpener
from warmshelfd.sources.http_exchange import PORTS, Reach
from warmshelfd.sources.hub import HubOpener
from warmshelfd.sources.limits import RetryLimits, TimeLimits
from warmshelfd.sources.redis import RedisOpener
from warmshelfd.sources.redis_writing import RedisWriter
from warmshelfd.sources.s3 import S3Opener
from warmshelfd.sources.s3_writing import S3Writer
from warmshelfd.sources.spool import SpoolOpener
from warmshelfd.spool.base import Spool
from warmshelfd.spool.directory import DirectorySpool
from warmshelfd.spool.place import scheme_of
from warmshelfd.spool.store import StoreSpool


def openers(settings: Settings) -> Mapping[str, SourceOpener]:
    """Return the openers by scheme; each knows what it may open."""
    # Also beside a store: what was pushed before there was one still lies here.
    kept = DirectorySpool(settings.spool_staging if scheme_of(settings.spool) else settings.spool).kept_directory
    return {
        "file": FileOpener(_allowed(settings, "file")),
        "spool": SpoolOpener(kept),
        **_http_openers(settings),
        **{scheme: _redis(settings, scheme) for scheme in SCHEMES},
        **_optional_openers(settings),
    }


def open_spool(settings: Settings) -> Spool:
    """Return the spool that the settings name; it is opened later. Further kinds of spool are chosen here.

    Raises:
        InvalidConfig: it needs a library that is not installed.
    """
    scheme = scheme_of(settings.spool)
    if not scheme:
        return DirectorySpool(settings.spool)
    if scheme != "s3":
        return StoreSpool(settings.spool_staging, RedisWriter(settings.spool, settings.source))
    if not find_spec("obstore"):
        raise InvalidConfig("a spool in S3 needs obstore: pip install 'warmshelf[s3]'")
    return StoreSpool(settings.spool_staging, S3Writer(settings.spool, settings.source, time_limits(settings)))


def _optional_openers(settings: Settings) -> Mapping[str, SourceOpener]:
    """Return those whose library is installed.

    Raises:
        InvalidConfig: an allowed prefix is none of its scheme.
    """
    found: dict[str, SourceOpener] = {}
    limits = time_limits(settings)
    try:
        if find_spec("obstore"):
            found["s3"] = S3Opener(_allowed(settings, "s3"), settings.source, limits, settings.source_read_threads)
        if find_spec("huggingface_hub"):
            found["hf"] = HubOpener(_allowed(settings, "hf"), settings.source, limits, settings.source_read_threads)
    except InvalidSpec as error:
        raise InvalidConfig(f"allow_source: {error.message}") from None
    return found


def _redis(settings: Settings, scheme: str) -> RedisOpener:
    find_pieces = partial(tensor_pieces, limits=settings.format_limits())
    return RedisOpener(scheme, _allowed(settings, scheme), settings.source, find_pieces)


def _http_openers(settings: Settings) -> Mapping[str, SourceOpener]:
    of_http = [one for one in settings.source if _scheme(one.prefix) in PORTS]
    reach = Reach(_allowed(settings, *PORTS), of_http, time_limits(settings))
    limits = settings.format_limits()

    def names_of(files: Files, index: str) -> Collection[str]:
        return _names_in(files, index, limits)

    return {scheme: HttpOpener(scheme, reach, names_of) for scheme in PORTS}


def time_limits(settings: Settings) -> TimeLimits:
    """Return how long servers of sources may take."""
    return TimeLimits(
        connect_seconds=settings.source_connect_seconds,
        answer_seconds=settings.source_answer_seconds,
        stall_seconds=settings.source_stall_seconds,
        bytes_per_second_min=settings.source_bytes_per_second_min,
        retry=RetryLimits(attempts_max=settings.source_attempts_max, total_seconds=settings.source_retry_seconds),
    )


def _names_in(files: Files, index: str, limits: FormatLimits) -> Collection[str]:
    return set(read_weight_map(files, index, limits).values())


def _allowed(settings: Settings, *schemes: str) -> list[str]:
    """Return the prefixes of these schemes that may be read; what this daemon keeps pushes in is one of them."""
    places = [*settings.allow_source, *([settings.spool] if scheme_of(settings.spool) else [])]
    return [prefix for prefix in places if _scheme(prefix) in schemes]


def _scheme(prefix: str) -> str:
    return prefix.partition("://")[0].lower() if "://" in prefix else "file"

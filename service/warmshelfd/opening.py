"""Which kinds of source there are: an opener for each scheme that this installation can read.

Knows every kind by its module and none by its inside. A kind whose library is not
installed is left out; asking for it is an error that names the extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from warmshelf.errors import InvalidConfig, InvalidSpec
from warmshelfd.settings import Settings
from warmshelfd.sources.base import SourceOpener
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.hub import HubOpener
from warmshelfd.sources.limits import RemoteLimits
from warmshelfd.sources.s3 import S3Opener


def openers(settings: Settings) -> Mapping[str, SourceOpener]:
    """Return the openers by scheme; each knows what it may open.

    Raises:
        InvalidConfig: an allowed prefix is none of its scheme.
    """
    found: dict[str, SourceOpener] = {"file": FileOpener(_allowed(settings, "file"))}
    try:
        if find_spec("obstore"):
            found["s3"] = S3Opener(_allowed(settings, "s3"), settings.source, _remote_limits(settings))
        if find_spec("huggingface_hub"):
            found["hf"] = HubOpener(_allowed(settings, "hf"), settings.source, _remote_limits(settings))
    except InvalidSpec as error:
        raise InvalidConfig(f"allow_source: {error.message}") from None
    return found


def _allowed(settings: Settings, scheme: str) -> list[str]:
    return [prefix for prefix in settings.allow_source if _scheme(prefix) == scheme]


def _remote_limits(settings: Settings) -> RemoteLimits:
    return RemoteLimits(
        connect_seconds=settings.source_connect_seconds,
        stall_seconds=settings.source_stall_seconds,
        retry_seconds=settings.source_retry_seconds,
        reads_at_once=settings.source_read_threads,
    )


def _scheme(prefix: str) -> str:
    return prefix.partition("://")[0].lower() if "://" in prefix else "file"

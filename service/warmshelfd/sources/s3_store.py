"""Connections to buckets through obstore: how they are configured, kept, and what their errors mean.

Knows what the operator says of a prefix and nothing of what objects hold. obstore is
imported when the first bucket is opened.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from warmshelf.errors import (
    InvalidConfig,
    SourceChangedDuringLoad,
    SourceNotAllowed,
    SourceNotFound,
    SourceTruncated,
    SourceUnavailable,
    WarmshelfError,
)
from warmshelfd.sources.limits import TimeLimits
from warmshelfd.sources.s3_uri import S3Place
from warmshelfd.sources.settings import SourceSettings, read_secret, settings_for

if TYPE_CHECKING:
    from obstore.store import S3Store

STORES_MAX = 64
"""Most buckets whose connections are kept; one more closes those that were used longest ago."""

READ_BYTES_MAX = 8 << 20
"""What one request asks for at most; how long it may take depends on it."""

_CA_BYTES_MAX = 4 << 20
"""Longest file of authorities; a system's own has 0.2 MB."""

_STATUS = re.compile(r"status code: ([1-5][0-9][0-9])")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")

_CREDENTIAL_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})
"""Refusals that AWS sends as 400."""

_REGION_CODES = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})


@dataclass(frozen=True, slots=True)
class Secrets:
    """What was read from where the settings say; compared to find out whether it changed."""

    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    ca: bytes = b""

    def __repr__(self) -> str:
        return "Secrets(...)"


class S3Stores:
    """The connections to buckets, kept between loads: a new one costs some round trips. For several threads."""

    def __init__(self, settings: Sequence[SourceSettings], limits: TimeLimits) -> None:
        self._settings = settings
        self._limits = limits
        self._lock = threading.Lock()  # guards the stores: by bucket and prefix of the settings, the last used last
        self._stores: OrderedDict[tuple[str, str], tuple[Secrets, S3Store]] = OrderedDict()

    def store(self, place: S3Place) -> S3Store:
        """Return the connections for a place, made anew where a credential has changed.

        Raises:
            InvalidConfig: what the operator says cannot be used.
        """
        settings = settings_for(place.uri, self._settings)
        secrets = read_secrets(settings) if settings else Secrets()
        key = (place.bucket, settings.prefix if settings else "")
        with self._lock:
            known = self._stores.pop(key, None)
            if known is None or known[0] != secrets:
                known = secrets, _make(place.bucket, settings, secrets, self._limits)
            self._stores[key] = known
            while len(self._stores) > STORES_MAX:
                self._stores.popitem(last=False)
            return known[1]


def read_secrets(settings: SourceSettings) -> Secrets:
    """Read what the settings only name.

    Raises:
        InvalidConfig: something cannot be read, or one half of a key is missing.
    """
    if bool(settings.access_key_id) != bool(settings.secret_access_key):
        raise InvalidConfig(f"source {settings.prefix!r} has one of access_key_id and secret_access_key, not both")
    return Secrets(
        _text(settings.access_key_id),
        _text(settings.secret_access_key),
        _text(settings.session_token),
        _read_ca(settings.ca_file) if settings.ca_file else b"",
    )


def _text(reference: str | None) -> str:
    if reference is None:
        return ""
    try:
        return read_secret(reference).decode("ascii").strip()
    except ValueError:
        raise InvalidConfig(f"{reference!r}, which is to hold a credential of S3, is not ASCII") from None


def _read_ca(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_CA_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"ca_file {path!r} cannot be read: {error.strerror}", path=path) from error
    if len(data) > _CA_BYTES_MAX:
        raise InvalidConfig(f"ca_file {path!r} has more than {_CA_BYTES_MAX} bytes", path=path)
    return data


def _make(bucket: str, settings: SourceSettings | None, secrets: Secrets, limits: TimeLimits) -> S3Store:
    from obstore.store import S3Store  # noqa: PLC0415 - the daemon may start without it

    options = store_options(bucket, settings, secrets, limits)
    try:
        return S3Store(bucket, **options)
    except Exception as error:  # noqa: BLE001 - whatever it raises, its text may have what it was given
        raise InvalidConfig(f"no S3 store can be made for bucket {bucket!r}: {type(error).__name__}") from None


def store_options(bucket: str, settings: SourceSettings | None, secrets: Secrets, limits: TimeLimits) -> dict[str, Any]:
    """Return what obstore is told. What is left out it takes from the environment, as AWS's tools do."""
    told = settings.endpoint if settings else None
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=limits.connect_seconds),
        "read_timeout": timedelta(seconds=limits.stall_seconds),
        "timeout": timedelta(seconds=limits.seconds_for(READ_BYTES_MAX)),
    }
    again = limits.retry
    waits = {"init_backoff": timedelta(seconds=again.wait_first_seconds), "base": 2}
    retry = {
        "max_retries": again.attempts_max - 1,
        "retry_timeout": timedelta(seconds=again.total_seconds),
        "backoff": {**waits, "max_backoff": timedelta(seconds=again.wait_max_seconds)},
    }
    options: dict[str, Any] = {"client_options": client, "retry_config": retry}
    client["allow_http"] = (told or _environment_endpoint()).lower().startswith("http://")
    if settings is None:
        return options
    if secrets.ca:
        client["root_certificate"] = secrets.ca
    if told:
        endpoint = told if settings.path_style else with_bucket(told, bucket)
        options |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}  # or the environment's would win
    if settings.region:
        options["region"] = settings.region
    options["virtual_hosted_style_request"] = not settings.path_style
    return {**options, **_credentials(settings, secrets)}


def _environment_endpoint() -> str:
    """Return the server that AWS's tools would ask; it is plain HTTP only if it says so."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _credentials(settings: SourceSettings, secrets: Secrets) -> Mapping[str, Any]:
    if settings.anonymous:
        return {"skip_signature": True}
    if not secrets.access_key_id:
        return {}
    # Given by a function, nothing of the environment is mixed in, such as another key's session token.
    given = {
        "access_key_id": secrets.access_key_id,
        "secret_access_key": secrets.secret_access_key,
        "token": secrets.session_token or None,
        "expires_at": None,
    }
    return {"skip_signature": False, "credential_provider": lambda: given}


def with_bucket(endpoint: str, bucket: str) -> str:
    """Return the endpoint with the bucket before its host, as it is addressed in virtual-hosted style."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()


def error_of(error: Exception, uri: str) -> WarmshelfError:
    """Return what an error of obstore means, without its text: that may have a signature or a server's answer.

    What is kept of it is the HTTP status and the code that S3 gives.
    """
    text, name = str(error), type(error).__name__
    status, code = _first(_STATUS, text) or _STATUSES.get(name, ""), _first(_CODE, text)
    what = f"{status} {code}".strip()
    if code in _REGION_CODES or status == "301":
        return SourceUnavailable(f"{uri} is in another region than the daemon is told ({what})", uri=uri, code=code)
    if status in ("401", "403") or code in _CREDENTIAL_CODES:
        return SourceNotAllowed(
            f"{uri}: the server refuses the daemon's credentials ({what}). Check the [[source]] table of this "
            "prefix, or where AWS's tools would find credentials, and that they may list and read",
            uri=uri,
            code=code,
        )
    if code == "NoSuchBucket":
        return SourceNotFound(f"{uri}: there is no such bucket", uri=uri, code=code)
    if status in _BY_STATUS:
        cls, why = _BY_STATUS[status]
        return cls(f"{uri}{why}", uri=uri)
    return SourceUnavailable(f"{uri} cannot be read: {what or _why(text)}", uri=uri, code=code)


_STATUSES = {
    "FileNotFoundError": "404",
    "PreconditionError": "412",
    "PermissionDeniedError": "403",
    "UnauthenticatedError": "401",
}
"""What errors of obstore mean that do not say the status."""

_BY_STATUS: Mapping[str, tuple[type[WarmshelfError], str]] = {
    "404": (SourceNotFound, ": there is no such object"),
    "412": (SourceChangedDuringLoad, " is not what it was when it was opened"),
    "416": (SourceTruncated, " ends before the bytes that are needed"),
}


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _why(text: str) -> str:
    """Return in our words why there was no answer."""
    for words, why in _REASONS:
        if any(word in text for word in words):
            return why
    return "the connection failed"


_REASONS: Iterable[tuple[Sequence[str], str]] = (
    (("metadata", "/latest/", "credential"), "no credentials were found where AWS's tools look for them"),
    (("TimedOut", "kind: Timeout"), "the server did not answer in time"),
    (("certificate", "Certificate"), "the server's certificate is not trusted"),
    (("dns error", "lookup address"), "the server's name is not known"),
    (("IncompleteBody", "kind: Interrupted"), "the connection ended in the middle of an answer"),
    (("kind: Connect",), "no connection to the server"),
)

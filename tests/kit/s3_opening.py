"""Openers of S3 for tests, with the keys of the test server and little patience."""

from __future__ import annotations

from warmshelfd.sources.limits import RetryLimits, TimeLimits
from warmshelfd.sources.s3 import S3Opener
from warmshelfd.sources.settings import SourceSettings

QUICK = TimeLimits(
    connect_seconds=1,
    answer_seconds=1,
    stall_seconds=0.3,
    retry=RetryLimits(attempts_max=10, total_seconds=1, wait_max_seconds=0.2),
)


def opener_of(endpoint: str, *allowed: str, **fields: object) -> S3Opener:
    """Return an opener for the fixture ``keys``; fields are those of ``[[source]]``."""
    keys = {"access_key_id": "env:KEY_OF_TEST", "secret_access_key": "env:SECRET_OF_TEST"}
    told = {"prefix": "s3://", "endpoint": endpoint, "region": "us-east-1", **keys, **fields}
    return S3Opener(allowed, [SourceSettings.model_validate(told)], QUICK)

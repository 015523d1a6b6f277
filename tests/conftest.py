"""What holds for all tests: a busy machine is no failure of what is tested; and servers that several kinds share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from kit.weed import Bucket, Weed, weed

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """A real S3 server, one for all tests; each takes a bucket of its own."""
    with weed(tmp_path_factory.mktemp("weed")) as it:
        yield it


@pytest.fixture
def bucket(s3: Weed, request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket."""
    return s3.bucket(f"b{abs(hash(request.node.nodeid)) % 10**12}")

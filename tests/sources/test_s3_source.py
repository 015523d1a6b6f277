"""S3 as a source, against a real server: what is found, what is read, what a change does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from kit.fault_proxy import FaultProxy, IgnoreConditions
from kit.models import filled, pattern, safetensors_bytes, write_shards
from kit.s3_opening import QUICK, opener_of
from kit.weed import ACCESS_KEY, PUBLIC_BUCKET, SECRET_KEY, Bucket, Weed
from warmshelf.errors import (
    InvalidSpec,
    SourceChangedDuringLoad,
    SourceNotAllowed,
    SourceNotFound,
    SourceTruncated,
    UnsupportedFormat,
    WarmshelfError,
)
from warmshelf.types import Source
from warmshelfd.decrypting import Keys
from warmshelfd.formats.base import FormatLimits
from warmshelfd.inspecting import Sources
from warmshelfd.sources import s3 as s3_module
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.s3 import S3Opener
from warmshelfd.sources.settings import SourceSettings

pytestmark = pytest.mark.usefixtures("keys")


@pytest.fixture
def opener(s3: Weed, bucket: Bucket) -> S3Opener:
    return opener_of(s3.endpoint, bucket.uri)


def read_all(source: OpenSource) -> dict[str, bytes]:
    return {name: source.read(name, 0, size) for name, size in source.files().items()}


def found(opener: S3Opener, uri: str) -> dict[str, bytes]:
    with opener.open(uri) as source:
        return read_all(source)


# --- what a URI means ----------------------------------------------------------


def test_one_object_is_a_source_of_one_file(opener: S3Opener, bucket: Bucket) -> None:
    data = pattern(1, 3 << 20)
    bucket.put("deep/down/model.safetensors", data)
    with opener.open(f"{bucket.uri}/deep/down/model.safetensors") as source:
        assert source.files() == {"model.safetensors": len(data)}
        for start, size in ((0, len(data)), (1, 100), (len(data) - 1, 1), (777_777, 2_000_001), (5, 0)):
            assert source.read("model.safetensors", start, size) == data[start : start + size]


def test_a_prefix_is_a_directory_and_nothing_beside_or_below_it(opener: S3Opener, bucket: Bucket) -> None:
    """B31: IDs that are a prefix of others, markers of directories, nested ones, spaces and plus signs."""
    for key in ("ad/1/", "ad/1/f x+y", "ad/1/nested/g", "ad/1/empty/", "ad/10/f", "ad/1-old/f", "ad/1.bak"):
        bucket.put(key, b"" if key.endswith("/") else key.encode())
    for uri in (f"{bucket.uri}/ad/1", f"{bucket.uri}/ad/1/"):
        assert found(opener, uri) == {"f x+y": b"ad/1/f x+y"}
    assert found(opener, f"{bucket.uri}/ad/10") == {"f": b"ad/10/f"}


def test_whole_buckets_and_odd_keys_are_read(opener: S3Opener, bucket: Bucket) -> None:
    names = ["a b", "a+b", "a%20b", "é", "~x", "*[x]", "q=1&b", "'(x)", ",;$!@:", "<>|^{}`"]
    for name in names:
        bucket.put(name, name.encode())
    assert found(opener, bucket.uri) == {name: name.encode() for name in names}
    for name in names:
        assert found(opener, f"{bucket.uri}/{name}") == {name: name.encode()}


def test_a_guess_that_is_wrong_does_not_matter(opener: S3Opener, bucket: Bucket) -> None:
    bucket.put("odd.safetensors/x", b"1")
    bucket.put("plain", b"2")
    assert found(opener, f"{bucket.uri}/odd.safetensors") == {"x": b"1"}
    assert found(opener, f"{bucket.uri}/plain") == {"plain": b"2"}


def test_an_empty_object_is_there_and_has_no_bytes(opener: S3Opener, bucket: Bucket) -> None:
    """B19: not to be taken for the mark of a directory."""
    bucket.put("d/model.safetensors", b"")
    for uri in (f"{bucket.uri}/d", f"{bucket.uri}/d/model.safetensors"):
        assert found(opener, uri) == {"model.safetensors": b""}


def test_listings_of_several_pages_are_read_whole(
    opener: S3Opener, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B31: a page has 1,000 keys. Far more keys than a model has are refused instead of kept."""
    names = {f"{i:04}.json": b"{}" for i in range(1200)}
    bucket.put_all("many/", names)
    with opener.open(f"{bucket.uri}/many") as source:
        assert source.files().keys() == names.keys()
    monkeypatch.setattr(s3_module, "ENTRIES_MAX", 1199)
    with pytest.raises(InvalidSpec, match="more than 1199 keys"):
        opener.open(f"{bucket.uri}/many").files()


def test_objects_have_no_revision(opener: S3Opener, bucket: Bucket) -> None:
    with pytest.raises(InvalidSpec):
        opener.open(f"{bucket.uri}/x", "v1")


# --- what is allowed, and what is not there ------------------------------------------


def test_only_whole_parts_below_an_allowed_prefix_are_looked_at(s3: Weed, bucket: Bucket, proxy: FaultProxy) -> None:
    """B54: outside, the words are the same whether or not there is something, and nobody is asked."""
    for key in ("loras/a/f", "lorasX/f", "other/f"):
        bucket.put(key, b"x")
    opener = opener_of(proxy.endpoint, f"{bucket.uri}/loras/")
    assert found(opener, f"{bucket.uri}/loras/a") == {"f": b"x"}
    proxy.requests.clear()
    for uri in (bucket.uri, f"{bucket.uri}/lorasX", f"{bucket.uri}/other", f"{bucket.uri}/nothing", "s3://another/x"):
        for refusing in (opener, S3Opener([])):
            with pytest.raises(SourceNotAllowed) as caught:
                refusing.open(uri)
            assert caught.value.message == f"{uri} is outside the allowed prefixes"
    assert proxy.requests == []


def test_what_is_missing_and_what_is_forbidden_are_told_apart(
    s3: Weed, bucket: Bucket, opener: S3Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B31: a missing bucket, a missing key, an unknown user, a wrong secret, and nobody."""
    bucket.put("x.safetensors", b"x")
    for uri in (f"{bucket.uri}/none", f"{bucket.uri}/none.safetensors"):
        with pytest.raises(SourceNotFound, match="no object has this key"):
            opener.open(uri).files()
    for uri in ("s3://nowhere-at-all/x", "s3://nowhere-at-all/x.safetensors"):
        with pytest.raises(SourceNotFound, match="no such bucket"):
            opener_of(s3.endpoint, "s3://nowhere-at-all").open(uri).files()
    for fields, code in (
        ({"access_key_id": "env:WRONG_KEY"}, "InvalidAccessKeyId"),
        ({"secret_access_key": "env:WRONG_KEY"}, "SignatureDoesNotMatch"),
        ({"anonymous": True}, "AccessDenied"),
    ):
        monkeypatch.setenv("WRONG_KEY", "WRONG5CANARY")
        for uri in (f"{bucket.uri}/x.safetensors", f"{bucket.uri}/dir"):
            with pytest.raises(SourceNotAllowed, match=rf"403 {code}.*Check the \[\[source\]\] table") as caught:
                opener_of(s3.endpoint, bucket.uri, **fields).open(uri).files()
            assert "CANARY" not in str(caught.value) + repr(caught.value.details)
            assert caught.value.__cause__ is None


def test_a_public_bucket_is_read_without_signing(s3: Weed, proxy: FaultProxy) -> None:
    assert found(opener_of(proxy.endpoint, "s3://public", anonymous=True), "s3://public/first") == {"first": b"x"}
    assert all("uthorization" not in request.head for request in proxy.requests)


def test_keys_of_the_environment_are_not_mixed_with_those_that_are_set(
    opener: S3Opener, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    bucket.put("x", b"x")
    assert found(opener, f"{bucket.uri}/x") == {"x": b"x"}


def test_without_keys_those_of_the_environment_are_used(
    s3: Weed, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("x", b"x")
    settings = SourceSettings(prefix="s3://", endpoint=s3.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert found(S3Opener([bucket.uri], [settings], QUICK), f"{bucket.uri}/x") == {"x": b"x"}


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_without_any_table_server_and_keys_are_those_that_the_tools_of_aws_would_use(
    s3: Weed, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    bucket.put("x", b"x")
    monkeypatch.setenv(variable, s3.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert found(S3Opener([bucket.uri], [], QUICK), f"{bucket.uri}/x") == {"x": b"x"}


def test_a_changed_secret_counts_from_the_next_source_on(s3: Weed, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("x", b"x")
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    opener = opener_of(s3.endpoint, bucket.uri, secret_access_key=f"file:{secret}")
    with pytest.raises(SourceNotAllowed):
        opener.open(f"{bucket.uri}/x").files()
    secret.write_text(f"{SECRET_KEY}\n")
    assert found(opener, f"{bucket.uri}/x") == {"x": b"x"}


def test_a_session_token_is_sent(proxy: FaultProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "token-canary")
    opener = opener_of(proxy.endpoint, bucket.uri, session_token="env:TOKEN_OF_TEST")
    with pytest.raises(WarmshelfError) as caught:  # this server knows no such token
        opener.open(f"{bucket.uri}/x").files()
    assert "x-amz-security-token: token-canary" in proxy.requests[0].head.lower()
    assert "canary" not in str(caught.value)


# --- changes -----------------------------------------------------------------------


def test_a_fingerprint_stays_while_nothing_is_written_and_differs_after_that(opener: S3Opener, bucket: Bucket) -> None:
    bucket.put("d/a.safetensors", b"1234")
    bucket.put_in_parts("d/b.safetensors", os.urandom(6 << 20))
    for uri, names in (
        (f"{bucket.uri}/d", ["a.safetensors", "b.safetensors"]),
        (f"{bucket.uri}/d/a.safetensors", ["a.safetensors"]),
    ):
        bucket.put("d/a.safetensors", b"1234")
        with opener.open(uri) as one, opener.open(uri) as other:
            before = one.fingerprint(names)
            assert before == one.as_opened(names) == one.fingerprint(names) == other.fingerprint(names[::-1])
        bucket.put("d/beside.json", os.urandom(8))
        with opener.open(uri) as one:
            assert before == one.as_opened(names)
            bucket.put("d/a.safetensors", b"4321")
            assert before == one.fingerprint(names) == one.fingerprint(names)  # how it looked at opening
            with suppress(SourceChangedDuringLoad):  # and no other bytes are read
                assert one.read("a.safetensors", 0, 4) == b"1234"
        with opener.open(uri) as one:
            assert before != one.as_opened(names)
        bucket.delete("d/a.safetensors")
        with opener.open(uri) as one, pytest.raises(SourceNotFound):
            one.fingerprint(names)


def test_what_was_read_before_is_not_asked_for_again(opener: S3Opener, bucket: Bucket) -> None:
    bucket.put("d/a.safetensors", b"1234")
    with opener.open(f"{bucket.uri}/d") as source:
        source.files()
        bucket.delete("d/a.safetensors")
        source.hold([("a.safetensors", 0, b"12")])
        assert source.read("a.safetensors", 0, 2) == b"12"
        with pytest.raises(SourceNotFound):
            source.read("a.safetensors", 0, 3)


@pytest.mark.parametrize("size", [2 << 20, 3 << 20])
def test_bytes_of_a_changed_object_are_not_read(opener: S3Opener, bucket: Bucket, size: int) -> None:
    """B29: replaced by as many bytes, and by more; gone; in an object and in a directory."""
    for uri, name in ((f"{bucket.uri}/d/a.safetensors", "a.safetensors"), (f"{bucket.uri}/d", "a.safetensors")):
        bucket.put("d/a.safetensors", bytes(2 << 20))
        with opener.open(uri) as source:
            assert not any(source.read(name, 1 << 20, 1 << 20))
            bucket.put("d/a.safetensors", b"x" * size)
            with pytest.raises(SourceChangedDuringLoad):
                source.read(name, 1 << 20, 1 << 20)
            bucket.delete("d/a.safetensors")
            with pytest.raises(SourceNotFound):
                source.read(name, 1 << 20, 1 << 20)


def test_a_server_that_ignores_the_condition_does_not_mix_versions(s3: Weed, proxy: FaultProxy) -> None:
    """B29: the answer's own ETag and size are held against what was opened."""
    public = s3.client()
    uri = f"s3://{PUBLIC_BUCKET}/changing.safetensors"
    public.put_object(Bucket=PUBLIC_BUCKET, Key="changing.safetensors", Body=bytes(2 << 20))
    proxy.fault = IgnoreConditions()
    opener = opener_of(proxy.endpoint, uri, anonymous=True)
    with opener.open(uri) as source:
        assert source.files() == {"changing.safetensors": 2 << 20}
        public.put_object(Bucket=PUBLIC_BUCKET, Key="changing.safetensors", Body=b"x" * (2 << 20))
        with pytest.raises(SourceChangedDuringLoad):
            source.read("changing.safetensors", 1 << 20, 1 << 20)


def test_reading_past_the_end_is_refused_without_asking(opener: S3Opener, bucket: Bucket) -> None:
    bucket.put("x", b"1234")
    with opener.open(f"{bucket.uri}/x") as source, pytest.raises(SourceTruncated) as caught:
        source.read("x", 2, 3)
    assert caught.value.details == {"uri": f"{bucket.uri}/x", "size_bytes": 4, "expected_bytes": 5}


# --- round trips --------------------------------------------------------------------


def test_inspecting_a_hundred_shards_asks_once_for_each(bucket: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    """Beside the listing, and beside what the server failed to answer, as it does when it is busy."""
    paths = write_shards(tmp_path / "m", [{f"t{i}": filled(i)["w"]} for i in range(100)])
    bucket.put_all(
        "m/", {path.name: path.read_bytes() for path in (*paths, tmp_path / "m/model.safetensors.index.json")}
    )
    sources = Sources({"s3": opener_of(proxy.endpoint, bucket.uri)}, FormatLimits(), Keys([]), 64 << 20)
    with sources.open(source_of(f"{bucket.uri}/m")) as opened:
        examined = sources.examine(opened, lambda: False)
    assert examined.inspection.tensor_count == 100
    objects = [request.target for request in proxy.passed if request.range]
    assert len(objects) == len(set(objects)) == 101
    assert len(proxy.passed) == 102


def test_a_single_object_is_inspected_by_one_request(bucket: Bucket, proxy: FaultProxy) -> None:
    bucket.put("m.safetensors", safetensors_bytes(filled(1)))
    inspect({"s3": opener_of(proxy.endpoint, bucket.uri)}, f"{bucket.uri}/m.safetensors")
    assert [request.method for request in proxy.requests] == ["GET"]


def test_what_no_format_reads_is_not_downloaded(bucket: Bucket, proxy: FaultProxy) -> None:
    """B31."""
    bucket.put("d/model.safetensors", safetensors_bytes(filled(1)))
    bucket.put("d/optimizer.pt", bytes(1000))
    bucket.put("d/README.md", b"x")
    inspect({"s3": opener_of(proxy.endpoint, bucket.uri)}, f"{bucket.uri}/d")
    assert [request.target.rpartition("/")[2] for request in proxy.requests if request.range] == ["model.safetensors"]


def test_files_of_no_format_are_refused(bucket: Bucket, opener: S3Opener) -> None:
    bucket.put("d/readme", b"x")
    with pytest.raises(UnsupportedFormat):
        inspect({"s3": opener}, f"{bucket.uri}/d")


def source_of(uri: str) -> Source:
    return Source(uri=uri)


def inspect(openers: Mapping[str, S3Opener], uri: str) -> None:
    sources = Sources(openers, FormatLimits(), Keys([]), 64 << 20)
    with sources.open(source_of(uri)) as opened:
        sources.examine(opened, lambda: False)

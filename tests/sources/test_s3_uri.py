"""Which texts name a place in S3, and how it is spelled."""

from __future__ import annotations

import pytest

from warmshelf.errors import InvalidConfig, InvalidSpec
from warmshelfd.sources.limits import TimeLimits
from warmshelfd.sources.s3_store import Secrets, read_secrets, store_options
from warmshelfd.sources.s3_uri import parse_s3_uri
from warmshelfd.sources.settings import SourceSettings


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/loras/a/", "s3://bucket/loras/a"),
        ("s3://old_Bucket.x/A/b c+d=e&f%20.safetensors", "s3://old_Bucket.x/A/b c+d=e&f%20.safetensors"),
        ("s3://bucket/ключ", "s3://bucket/ключ"),
    ],
)
def test_a_place_has_one_spelling_and_a_key_stands_as_it_is(text: str, uri: str) -> None:
    """B05, B31."""
    assert parse_s3_uri(text).uri == uri
    assert parse_s3_uri(uri) == parse_s3_uri(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3:/bucket/a",
        "s3://",
        "s3:///a",
        "s3://b/a",
        "s3://bucket:80/a",
        "s3://key:canary@bucket/a",
        "s3://bucket/a?secret_access_key=canary",
        "s3://bucket/a#canary",
        "s3://bucket//a",
        "s3://bucket/a//b",
        "s3://bucket/a/../b",
        "s3://bucket/./a",
        "s3://bucket/a//",
        "s3://bucket/a\nb",
        "s3://bucket/a\0",
        "s3://bucket/\udcff",
        "s3://bucket/" + "x" * 1025,
    ],
)
def test_what_is_no_place_is_refused_and_not_repeated(text: str) -> None:
    """B33: where a query or a user could stand there may be a secret."""
    with pytest.raises(InvalidSpec) as caught:
        parse_s3_uri(text)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "is_file_like"),
    [("a/model.safetensors", True), ("x.tensors", True), ("llama-3.1-8b", False), ("v1.5", False), ("loras/a", False)],
)
def test_where_to_look_first_is_guessed_by_the_suffix(key: str, is_file_like: bool) -> None:
    assert parse_s3_uri(f"s3://bucket/{key}").is_file_like is is_file_like


# --- what obstore is told -----------------------------------------------------


def options(secrets: Secrets | None = None, **fields: object) -> dict[str, object]:
    settings = SourceSettings.model_validate({"prefix": "s3://bucket", **fields})
    return store_options("bucket", settings, secrets or Secrets(), TimeLimits())


def test_a_bucket_is_addressed_in_the_path_or_in_the_host() -> None:
    told = options(endpoint="http://minio:9000")
    assert (told["endpoint"], told["virtual_hosted_style_request"]) == ("http://minio:9000", False)
    told = options(endpoint="https://s3.example.org", path_style=False)
    assert (told["endpoint"], told["virtual_hosted_style_request"]) == ("https://bucket.s3.example.org", True)


@pytest.mark.parametrize(("endpoint", "plain"), [("http://minio:9000", True), ("https://minio", False)])
def test_a_connection_without_tls_is_made_only_where_the_endpoint_says_so(endpoint: str, plain: bool) -> None:
    client = options(endpoint=endpoint)["client_options"]
    assert isinstance(client, dict)
    assert client["allow_http"] is plain


def test_without_credentials_the_chain_of_aws_is_left_to_find_them() -> None:
    told = options(region="eu-central-1")
    assert told["region"] == "eu-central-1"
    assert not {"credential_provider", "skip_signature", "access_key_id"} & told.keys()
    assert options(anonymous=True)["skip_signature"] is True
    assert set(store_options("bucket", None, Secrets(), TimeLimits())) == {"client_options", "retry_config"}


def test_half_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "x")
    with pytest.raises(InvalidConfig, match="not both"):
        read_secrets(SourceSettings(prefix="s3://bucket", access_key_id="env:KEY_OF_TEST"))


def test_secrets_do_not_show_themselves() -> None:
    assert "canary" not in repr(Secrets("canary", "canary", "canary"))

"""Hugging Face hubs as a source: huggingface_hub's own code against a small hub, and a snapshot in its cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.adapters import adapter_files, pair
from kit.hub import TOKEN, Hub, hub
from kit.models import filled, pattern, safetensors_bytes, write_shards
from kit.processes import Daemon, read_all
from kit.s3_opening import QUICK
from warmshelf import errors
from warmshelf.errors import InvalidSpec, SourceNotAllowed, SourceNotFound, SourceUnavailable, WarmshelfError
from warmshelf.types import Source
from warmshelfd.decrypting import Keys
from warmshelfd.formats.base import FormatLimits
from warmshelfd.inspecting import Sources
from warmshelfd.sources.hub import HubOpener
from warmshelfd.sources.hub_uri import parse_hub_uri
from warmshelfd.sources.settings import SourceSettings

SMALL, LARGE = b'{"a": 1}', pattern(3, 1 << 20)
FILES = {"config.json": SMALL, "model.safetensors": LARGE, "sub/x.bin": b"sub", "sub/deep/y": b"deep"}


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with hub() as it:
        yield it


@pytest.fixture
def served(server: Hub) -> Iterator[Hub]:
    """The hub with one repository, and no request and no fault yet."""
    server.repositories.clear()
    server.requests.clear()
    server.repository("org/name").commit(FILES)
    yield server
    server.busy = server.cut = 0
    server.ignores_ranges = server.sends_wrong_ranges = server.moves_on = False


@pytest.fixture(autouse=True)
def nothing_stays_open() -> None:
    """The library keeps its connections."""


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", TOKEN)
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")


def opener_of(served: Hub, *allowed: str, **fields: object) -> HubOpener:
    told = {"prefix": "hf://org", "endpoint": served.endpoint, "allow_private": True, **fields}
    return HubOpener(allowed or ("hf://org",), [SourceSettings.model_validate(told)], QUICK)


def found(opener: HubOpener, uri: str, revision: str = "") -> dict[str, bytes]:
    with opener.open(uri, revision) as source:
        return {name: source.read(name, 0, size) for name, size in source.files().items()}


# --- names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("HF://org/name", "hf://org/name"),
        ("hf://Org/na.me_1-x/", "hf://Org/na.me_1-x"),
        ("hf://org/name@v1.0/sub dir/x", "hf://org/name@v1.0/sub dir/x"),
        ("hf://org/name@refs%2fpr%2F1", "hf://org/name@refs%2Fpr%2F1"),
    ],
)
def test_a_repository_has_one_spelling(text: str, uri: str) -> None:
    assert parse_hub_uri(text).uri == uri
    assert parse_hub_uri(uri) == parse_hub_uri(text)


@pytest.mark.parametrize(
    "text",
    ["hf:org/name", "hf://name", "hf:///name", "hf://org/", "hf://org/name@", "hf://org/name@a..b", "hf://org/name@-x",
     "hf://org/name@a%2F%2Fb", "hf://user:canary@org/name", "hf://org/name?token=canary", "hf://org/name/x#canary",
     "hf://org/name/../x", "hf://org/name//x", "hf://org/name/a%2Fb", "hf://org/name/a\nb", "hf://org/.x"],
)  # fmt: skip
def test_what_is_no_repository_is_refused_and_not_repeated(text: str) -> None:
    """B33."""
    with pytest.raises(InvalidSpec) as caught:
        parse_hub_uri(text)
    assert "canary" not in str(caught.value)


# --- what a URI means ---------------------------------------------------------------


def test_a_repository_a_directory_and_a_file_are_sources(served: Hub) -> None:
    opener = opener_of(served)
    assert found(opener, "hf://org/name") == {"config.json": SMALL, "model.safetensors": LARGE}
    assert found(opener, "hf://org/name@main/sub") == {"x.bin": b"sub"}
    assert found(opener, "hf://org/name/model.safetensors") == {"model.safetensors": LARGE}
    with opener.open("hf://org/name") as source:
        assert source.read("model.safetensors", 12_345, 500_000) == LARGE[12_345:512_345]


def test_a_revision_is_a_branch_a_tag_or_a_commit_and_is_resolved_once(served: Hub) -> None:
    """B29: the branch moves while the source is open."""
    repository, opener = served.repository("org/name"), opener_of(served)
    first = repository.resolve("main")
    repository.commit({"config.json": b"other"}, "refs/pr/1")
    assert found(opener, "hf://org/name@refs%2Fpr%2F1") == {"config.json": b"other"}
    assert found(opener, "hf://org/name", "refs/pr/1") == {"config.json": b"other"}
    with opener.open("hf://org/name") as source:
        assert source.files().keys() == {"config.json", "model.safetensors"}
        repository.commit({"config.json": b"moved!!!", "model.safetensors": LARGE[::-1]})
        assert source.read("config.json", 0, len(SMALL)) == SMALL
        assert source.read("model.safetensors", 0, 1000) == LARGE[:1000]
    assert found(opener, f"hf://org/name@{first}")["config.json"] == SMALL
    with pytest.raises(InvalidSpec, match="one revision, the spec another"):
        opener.open("hf://org/name@main", "v2")


def test_a_fingerprint_is_of_the_files_and_not_of_the_commit(served: Hub) -> None:
    repository, opener = served.repository("org/name"), opener_of(served)
    names = ["config.json", "model.safetensors"]

    def fingerprint() -> str:
        with opener.open("hf://org/name") as source:
            return source.fingerprint(names)

    before = fingerprint()
    repository.commit({**FILES, "README.md": b"new"})
    assert fingerprint() == before
    repository.commit({**FILES, "model.safetensors": LARGE[::-1]})
    assert fingerprint() != before


# --- what is allowed ------------------------------------------------------------------


def test_an_organisation_a_repository_or_a_revision_may_be_allowed(served: Hub) -> None:
    """B54: outside, nobody is asked."""
    for prefix in ("hf://org", "hf://org/", "hf://org/name", "hf://org/name@main", "hf://org/name/sub"):
        assert found(opener_of(served, prefix), "hf://org/name@main/sub") == {"x.bin": b"sub"}
    served.requests.clear()
    for prefix in ("hf://or", "hf://org/nam", "hf://org/name@v1", "hf://org/name/su", "hf://org/name@main/deep"):
        with pytest.raises(SourceNotAllowed, match="outside the allowed prefixes"):
            opener_of(served, prefix).open("hf://org/name@main/sub")
    assert served.requests == []


def test_what_is_missing_is_named(served: Hub) -> None:
    opener = opener_of(served)
    for uri, words in (
        ("hf://org/none", "no such repository"),
        ("hf://org/name@none", "no such revision"),
        ("hf://org/name/none", "no file 'none'"),
    ):
        with pytest.raises(SourceNotFound, match=words):
            opener.open(uri).files()


def test_only_the_token_of_the_configuration_is_sent_and_only_to_the_hub(served: Hub) -> None:
    """The other server refuses any token."""
    served.repository("org/name").is_private = True
    with pytest.raises(SourceNotFound, match="private"):
        opener_of(served).open("hf://org/name").files()
    opener = opener_of(served, bearer_token="env:TOKEN_OF_TEST")
    assert found(opener, "hf://org/name")["model.safetensors"] == LARGE


def test_a_hub_sends_readers_to_no_address_inside_unless_that_is_allowed(served: Hub) -> None:
    """T19: the hub itself is where the operator says; where it sends readers for large files is the hub's word."""
    opener = opener_of(served, allow_private=False)
    with opener.open("hf://org/name") as source:
        assert source.read("config.json", 0, len(SMALL)) == SMALL  # the hub's own
        before = len(served.requests)
        with pytest.raises(SourceNotAllowed, match="no public address"):
            source.read("model.safetensors", 0, 10)
        assert [path for method, path, _ in served.requests[before:] if method == "GET"] == []


def test_the_longest_prefix_that_names_the_repository_counts(served: Hub) -> None:
    served.repository("org/name").is_private = True
    every = SourceSettings(prefix="hf://org", endpoint=served.endpoint, allow_private=True)
    one = SourceSettings(
        prefix="hf://org/name", endpoint=served.endpoint, allow_private=True, bearer_token="env:TOKEN_OF_TEST"
    )
    assert found(HubOpener(["hf://org"], [every, one], QUICK), "hf://org/name@main/sub") == {"x.bin": b"sub"}


# --- faults -----------------------------------------------------------------------------


def test_faults_that_pass_are_not_seen(served: Hub) -> None:
    """B29: busy, cut in the middle, and an address that has expired."""
    served.busy = 2
    with opener_of(served).open("hf://org/name") as source:
        served.cut = 2
        assert source.read("model.safetensors", 10, len(LARGE) - 10) == LARGE[10:]
        served.signature = "signature-canary-1"
        assert source.read("model.safetensors", 20, len(LARGE) - 20) == LARGE[20:]
        served.busy = 2
        assert source.read("model.safetensors", 30, len(LARGE) - 30) == LARGE[30:]


@pytest.mark.parametrize(
    ("fault", "value", "words"),
    [
        ("busy", 1000, "503"),
        ("cut", 1000, "cannot be read"),
        ("ignores_ranges", True, "does not send ranges"),
        ("sends_wrong_ranges", True, "another range"),
        ("moves_on", True, "from one server to the next"),
    ],
)
def test_faults_that_stay_are_told_without_addresses(served: Hub, fault: str, value: object, words: str) -> None:
    """B29, B33."""
    with opener_of(served).open("hf://org/name") as source:
        setattr(served, fault, value)
        with pytest.raises(WarmshelfError, match=words) as caught:
            source.read("model.safetensors", 10, len(LARGE) - 10)
    assert caught.value.retryable
    assert "canary" not in f"{caught.value} {caught.value.details}"
    assert caught.value.__cause__ is None


def test_a_hub_that_is_not_there_and_offline_mode_are_told(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = HubOpener(["hf://org"], [SourceSettings(prefix="hf://", endpoint="http://127.0.0.1:1")], QUICK)
    with pytest.raises(SourceUnavailable, match="no answer"):
        nobody.open("hf://org/x").files()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE"):
        opener_of(served).open("hf://org/name").files()


# --- through the daemon --------------------------------------------------------------------


def test_a_base_and_an_adapter_are_registered_loaded_and_found_again(
    daemon: Daemon, served: Hub, tmp_path: Path
) -> None:
    shards = [{"a": ("BF16", (1000, 500), pattern(1, 1_000_000))}, {"b": ("F32", (), pattern(2, 4))}]
    write_shards(tmp_path / "base", shards)
    base = {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()}
    served.repository("org/base").commit(base)
    served.repository("org/lora").commit(adapter_files(pair("q_proj")))
    config = daemon.root / "daemon.toml"
    config.write_text(f'[[source]]\nprefix = "hf://org"\nendpoint = "{served.endpoint}"\nallow_private = true\n')
    daemon.start("--config", str(config), "--budget", "64MiB", "--allow-source", "hf://org")
    with daemon.connect() as shelf:
        shelf.register("base", "hf://org/base@main")
        shelf.register("lora", "hf://org/lora", revision="main")
        for _ in range(2):
            with shelf.acquire("base", timeout=20) as lease:
                assert read_all(lease) == {name: data for shard in shards for name, (_, _, data) in shard.items()}
            with shelf.acquire("lora", timeout=20) as lease:
                assert len(lease) == 2
            shelf.evict("base")
            shelf.evict("lora")
        served.repository("org/base").commit(
            {**base, "model-00002-of-00002.safetensors": safetensors_bytes({"b": ("F32", (), b"1234")})}
        )
        with pytest.raises(errors.SourceChanged):
            shelf.acquire("base", timeout=20)
    assert "canary" not in daemon.log.read_text()


# --- a snapshot in the cache ------------------------------------------------------------------


def make_snapshot(cache: Path, blobs: Path) -> Path:
    """Lay out a repository as the library's cache does: names that link to blobs."""
    snapshot = cache / "models--org--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    blobs.mkdir(parents=True)
    for name, data in {"model.safetensors": safetensors_bytes(filled(7)), "config.json": b"{}"}.items():
        blob = blobs / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name if blobs.parent == snapshot.parents[1] else blob)
    return snapshot


def test_a_snapshot_of_the_cache_is_read_through_its_links(daemon: Daemon) -> None:
    snapshot = make_snapshot(daemon.models, daemon.models / "models--org--name" / "blobs")
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        shelf.register("m", f"file://{snapshot}")
        with shelf.acquire("m", timeout=20) as lease:
            assert bytes(lease["w"]) == bytes([7]) * 256


def test_a_snapshot_whose_blobs_lie_outside_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    """B54."""
    snapshot = make_snapshot(daemon.models, tmp_path / "elsewhere" / "blobs")
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        with pytest.raises(errors.SourceNotAllowed):
            shelf.register("m", f"file://{snapshot}")
        assert shelf.list() == []


def test_sources_without_their_library_name_the_extra() -> None:
    sources = Sources({}, FormatLimits(), Keys([]), 64 << 20)
    for uri, extra in (("s3://bucket/x", "s3"), ("hf://org/name", "hub")):
        with pytest.raises(InvalidSpec, match=rf"pip install 'warmshelf\[{extra}\]'"):
            sources.open(Source(uri=uri))

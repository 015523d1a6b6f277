"""Secrets of web sources are nowhere to be seen: not in errors, listings, metrics, logs, the registry or the arena."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

import warmshelf
from kit import web_faults as faults
from kit.models import filled, safetensors_bytes
from kit.processes import Daemon, eventually, read_all
from kit.scrape import HTTP, pages_of
from kit.web import Web, serving
from warmshelf import errors

TOKEN, PASSWORD, KEY = "canary-bearer-8d31", "canary-password-77aa", "canary-header-c0de"
SIGNATURE, TYPED = "canary-signature-19f4", "canary-typed-e5b2"
CANARIES = (TOKEN, PASSWORD, KEY, SIGNATURE, TYPED, "Y2FuYXJ5")  # the last is how base64 begins

MODEL = safetensors_bytes(filled(1, 300_000))


@dataclass
class Shown:
    """All that anybody was told."""

    texts: list[str] = field(default_factory=list)

    def failing(self, call: Callable[[], object]) -> errors.WarmshelfError:
        with pytest.raises(errors.WarmshelfError) as failed:
            call()
        self.texts += [str(failed.value), repr(failed.value), repr(failed.value.details)]
        return failed.value


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.fixture
def untrusted() -> Iterator[Web]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with serving(context) as web:
        yield web


@pytest.fixture
def reader(web: Web, untrusted: Web, tmp_path: Path) -> Iterator[Daemon]:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    config = tmp_path / "daemon.toml"
    config.write_text(f"""
source_answer_seconds = 0.5
source_retry_seconds = 1
source_attempts_max = 2
allow_source = ["{web.url}", "{untrusted.url}"]
[[source]]
prefix = "{web.url}/token"
allow_private = true
bearer_token = "env:WEB_TOKEN"
headers = {{ "X-Key" = "env:WEB_KEY" }}
[[source]]
prefix = "{web.url}/basic"
allow_private = true
username = "me"
password = "file:{password}"
[[source]]
prefix = "{web.url}/signed"
allow_private = true
[[source]]
prefix = "{untrusted.url}"
allow_private = true
bearer_token = "env:WEB_TOKEN"
""")
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        daemon = Daemon(tmp_path, Path(arena), tmp_path)
        options = ("--config", str(config), "--budget", "64MiB", *HTTP)
        allowed = ("--allow-source", web.url, untrusted.url)
        yield daemon.start(*options, *allowed, env={"WEB_TOKEN": TOKEN, "WEB_KEY": KEY})
        daemon.kill(15)
        daemon.check()


def test_secrets_are_used_and_shown_nowhere(web: Web, untrusted: Web, reader: Daemon) -> None:
    """B33, G13: after what went well, and after each way to fail."""
    shown = Shown()
    with reader.connect() as shelf:
        for place in ("token", "basic"):
            url = web.put(f"/{place}", {"w.safetensors": MODEL}) + "w.safetensors"
            load_and_fail(web, shelf, shown, place, url)
        follow_signed(web, shelf, shown)
        untrusted.put("/m", {"w.safetensors": MODEL})
        shown.failing(lambda: shelf.register("tls", f"{untrusted.url}/m/w.safetensors"))
        type_secrets(web, shelf, shown)
        shown.texts += [repr(shelf.list()), repr(shelf.leases()), repr(shelf.capacity())]
    used = {value for asked in web.asked for value in asked.headers.values()}
    assert f"Bearer {TOKEN}" in used
    assert KEY in used
    assert any(SIGNATURE in asked.path for asked in web.asked)
    shown.texts += [pages_of(reader).text(), reader.ready_line, reader.log.read_text()]
    kept = filter(Path.is_file, reader.registry.parent.rglob("*"))
    shown.texts += [path.read_bytes().decode("latin-1") for path in kept]
    shown.texts += [path.read_bytes().decode("latin-1") for path in reader.arena.iterdir() if path.is_file()]
    assert_unseen(shown)


def load_and_fail(web: Web, shelf: warmshelf.Shelf, shown: Shown, artifact_id: str, url: str) -> None:
    shelf.register(artifact_id, url)
    with shelf.acquire(artifact_id, timeout=20) as lease:
        assert list(read_all(lease)) == ["w"]
    eventually(lambda: shelf.get(artifact_id).digest != "", "the digest is known")
    name = "w.safetensors"
    for fault in (faults.Status(name, status=403), faults.Status(name, status=503), faults.Silent(name)):
        shelf.evict(artifact_id)
        web.faults[:] = [fault]
        assert url in shown.failing(lambda: shelf.acquire(artifact_id, timeout=20)).message
        shown.texts.append(repr(shelf.get(artifact_id)))
        web.faults.clear()
        with shelf.acquire(artifact_id, timeout=20):
            pass
    shelf.evict(artifact_id)
    web.faults[:] = [
        faults.Redirect(name, to=lambda path: f"http://elsewhere.example{path}?X-Amz-Signature={SIGNATURE}")
    ]
    shown.failing(lambda: shelf.acquire(artifact_id, timeout=20))
    web.faults.clear()


def follow_signed(web: Web, shelf: warmshelf.Shelf, shown: Shown) -> None:
    """A redirect to a signed URL is followed; then what it leads to fails."""
    url = web.put("/signed/a", {"w.safetensors": MODEL}) + "w.safetensors"
    web.put("/signed/b", {"w.safetensors": MODEL})

    def sign(path: str) -> str:
        return f"/signed/b/w.safetensors?X-Amz-Signature={SIGNATURE}"

    lend = faults.Redirect("w.safetensors", to=sign)
    web.faults[:] = [lambda handler, asked: "/signed/a/" in asked.path and lend(handler, asked)]
    shelf.register("signed", url)
    with shelf.acquire("signed", timeout=20):
        pass
    eventually(lambda: shelf.get("signed").digest != "", "the digest is known")
    for fault in (faults.Status("w.safetensors", status=403), faults.GzipAnyway("w.safetensors")):
        shelf.evict("signed")
        web.faults.append(lambda handler, asked, fault=fault: "/signed/b/" in asked.path and fault(handler, asked))  # type: ignore[misc]
        shown.failing(lambda: shelf.acquire("signed", timeout=20))
        web.faults.pop()
        with shelf.acquire("signed", timeout=20):
            pass
    web.faults.clear()


def type_secrets(web: Web, shelf: warmshelf.Shelf, shown: Shown) -> None:
    """What callers write into a URL is refused and not repeated."""
    host = web.url.removeprefix("http://")
    for url in (
        f"{web.url}/token/w.safetensors?X-Amz-Signature={TYPED}",
        f"{web.url}/token/w.safetensors#{TYPED}",
        f"http://user:{TYPED}@{host}/token/w.safetensors",
        f"http://{TYPED}@{host}/token/w.safetensors",
        f"ftp://user:{TYPED}@{host}/w.safetensors",
        f"http://{host}\\@{TYPED}/w.safetensors",
    ):
        assert isinstance(shown.failing(lambda url=url: shelf.register("typed", url)), errors.InvalidSpec)  # type: ignore[misc]


def assert_unseen(shown: Shown) -> None:
    for canary in CANARIES:
        seen = [text[max(0, text.find(canary) - 200) :][:400] for text in shown.texts if canary in text]
        assert seen == []

"""G13: a canary in every place that takes a secret, and a look at every place where somebody could see one.

What well-used secrets of web sources do is in ``tests/e2e/test_http_secrets.py``. Here every kind of secret fails:
servers that refuse, servers that are away, keys that do not fit.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kit.models import filled, safetensors_bytes
from kit.ports import free_port
from kit.processes import Daemon, eventually
from kit.scrape import HTTP, pages_of
from kit.web import Web, serving
from warmshelf.errors import WarmshelfError
from warmshelfd.identities import IdentitySettings
from warmshelfd.settings import Settings
from warmshelfd.sources import settings as source_settings
from warmshelfd.sources.settings import SourceSettings

pytestmark = pytest.mark.e2e

CANARIES_MIN = 20
STORES = ("s3://bucket", "hf://org")
MODEL = safetensors_bytes(filled(1, 10_000))


@dataclass
class Nest:
    """Canaries, and how the daemon is told of each: in turns by its environment and by a file."""

    root: Path
    birds: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)

    def lay(self, what: str, *, in_file: bool = False) -> str:
        """Make a canary for a place and return what the configuration says of it."""
        bird = self.birds[what] = f"canary{len(self.birds):02}{base64.b32encode(os.urandom(15)).decode().lower()}"
        name = f"BIRD_{len(self.birds)}"
        if in_file:
            path = self.root / name.lower()
            path.write_text(bird)
            return f"file:{path}"
        self.environ[name] = bird
        return f"env:{name}"

    def typed(self, what: str) -> str:
        """Make a canary that a caller types where it does not belong."""
        self.lay(what)
        return self.birds[what]


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        yield web


def config(nest: Nest, web: Web, away: int, models: Path) -> str:
    """Return a configuration with a secret for each kind of source, twice over where there are two ways."""
    lay, rows = nest.lay, []

    def source(prefix: str, **values: str) -> None:
        told = "".join(
            f"{name} = {value if name == 'headers' else json.dumps(value)}\n" for name, value in values.items()
        )
        private = "allow_private = true\n" if prefix.startswith("http") else ""
        rows.append(f'[[source]]\nprefix = "{prefix}"\n{private}{told}')

    for in_file in (False, True):
        at, kind = ("file" if in_file else "env"), {"in_file": in_file}
        source(f"{web.url}/bearer-{at}", bearer_token=lay(f"bearer_token {at}", **kind))
        source(f"{web.url}/basic-{at}", username="me", password=lay(f"password of http {at}", **kind))
        source(f"{web.url}/header-{at}", headers=f'{{ "X-Key" = "{lay(f"headers {at}", **kind)}" }}')
        source(f"redis://127.0.0.1:{away}/{int(in_file)}", password=lay(f"password of redis {at}", **kind))
        source(
            f"s3://bucket-{at}",
            endpoint=web.url,
            access_key_id=lay(f"access_key_id {at}", **kind),
            secret_access_key=lay(f"secret_access_key {at}", **kind),
            session_token=lay(f"session_token {at}", **kind),
        )
        source(f"hf://org-{at}", endpoint=web.url, bearer_token=lay(f"bearer_token of hf {at}", **kind))
        source(f"file://{models}/{at}", tensors_key=lay(f"tensors_key {at}", **kind))
        name = f"identity-{at}"
        rows.append(f'[[identity]]\nname = "{name}"\ntoken = "{lay(f"token {at}", **kind)}"\nroles = ["reader"]\n')
    password = lay("registry_password", in_file=True)
    limits = (
        "source_connect_seconds = 0.5\nsource_answer_seconds = 1\nsource_attempts_max = 1\nsource_retry_seconds = 1\n"
    )
    return f'{limits}registry_username = "me"\nregistry_password = "{password}"\n' + "\n".join(rows)


class SharedRegistry(Daemon):
    """A daemon whose registry would be in a Redis that is away."""

    away = 0
    allowed: tuple[str, ...] = ()

    def command(self, *options: str) -> list[str]:
        command = super().command(*options)
        command[command.index("--registry") + 1] = f"redis://127.0.0.1:{self.away}/3"
        return [*command[: command.index("--allow-source") + 2], *self.allowed, *options]


@pytest.fixture
def nest(tmp_path: Path) -> Nest:
    (tmp_path / "nest").mkdir()
    return Nest(tmp_path / "nest")


@pytest.fixture
def daemon(nest: Nest, web: Web, tmp_path: Path) -> Iterator[Daemon]:
    models = tmp_path / "models"
    for at in ("env", "file"):
        (models / at).mkdir(parents=True)
        (models / at / "m.safetensors").write_bytes(MODEL)
        (models / at / "bad.tensors").write_bytes(b"|TZR|\n" + bytes(1000))
    (tmp_path / "state").mkdir()
    away = free_port()
    path = tmp_path / "daemon.toml"
    path.write_text(config(nest, web, away, models))
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = SharedRegistry(tmp_path, Path(arena), models)
        it.away = away
        stores = (f"{store}-{at}" for store in STORES for at in ("env", "file"))
        it.allowed = (web.url, f"redis://127.0.0.1:{away}", *stores)
        told = {**nest.environ, "WARMSHELF_REGISTRY_COPY": str(it.registry)}
        yield it.start("--config", str(path), "--budget", "64MiB", *HTTP, env=told)
        assert it.kill(15) == 0


def secret_fields() -> set[str]:
    """Every setting that is a secret, by its type."""
    models: tuple[type[BaseModel], ...] = (Settings, SourceSettings, IdentitySettings)
    return {name for model in models for name, told in model.model_fields.items() if "Secret" in _types(model)[name]}


def _types(model: type[BaseModel]) -> dict[str, str]:
    return {
        name: str(kind)
        for base in reversed(model.__mro__)
        for name, kind in vars(base).get("__annotations__", {}).items()
    }


def test_there_is_a_canary_for_every_setting_that_is_a_secret(nest: Nest, web: Web, tmp_path: Path) -> None:
    config(nest, web, 1, tmp_path)
    told = " ".join(nest.birds)
    assert secret_fields() == {
        *("registry_password", "bearer_token", "password", "headers", "access_key_id", "secret_access_key"),
        *("session_token", "tensors_key", "token"),
    }
    assert [name for name in secret_fields() if name not in told] == []
    assert source_settings.Secret


def _fail_everywhere(daemon: Daemon, web: Web, nest: Nest) -> list[str]:
    """Use every secret, and type some where they do not belong; return all that callers are told."""
    texts: list[str] = []
    uris = [f"{web.url}/{kind}-{at}/w.safetensors" for kind in ("bearer", "basic", "header") for at in ("env", "file")]
    uris += [f"redis://127.0.0.1:{daemon.away}/{db}/m" for db in (0, 1)]  # type: ignore[attr-defined]
    for at in ("env", "file"):
        uris += [f"s3://bucket-{at}/m", f"hf://org-{at}/model"]
        uris += [f"file://{daemon.models}/{at}/{name}" for name in ("m.safetensors", "bad.tensors")]
    host = web.url.removeprefix("http://")
    uris += [
        f"http://me:{nest.typed('typed as a password')}@{host}/w",
        f"{web.url}/w?sig={nest.typed('typed as a query')}",
    ]
    uris += [f"{web.url}/w#{nest.typed('typed as a fragment')}", f"ftp://me:{nest.typed('typed for ftp')}@x/y"]
    uris += [
        f"s3://{nest.typed('typed before a bucket')}@bucket-env/m",
        f"redis://:{nest.typed('typed for redis')}@h/0/m",
    ]
    with daemon.connect() as shelf:
        for number, uri in enumerate(uris):
            for call in (shelf.register, lambda name, _: shelf.acquire(name, timeout=5)):
                try:
                    texts.append(repr(call(f"a{number}", uri)))
                except WarmshelfError as error:
                    texts += [str(error), repr(error), repr(error.details)]
        texts += [repr(shelf.list()), repr(shelf.leases()), repr(shelf.capacity())]
    return texts


def _shown_by_commands(daemon: Daemon, nest: Nest) -> list[str]:
    """What commands print: with a token that is nobody's, and a daemon that is told a secret in its options."""
    token = nest.root / "token"
    token.write_text(nest.typed("a caller's token"))
    told = {**os.environ, "WARMSHELF_TOKEN_FILE": str(token)}
    command = [sys.executable, "-m", "warmshelf.cli"]
    calls = [[*command, "list", "--address", daemon.address, "--output", "json"]]
    calls += [[sys.executable, "-m", "warmshelfd", "--registry", f"redis://:{nest.typed('typed as an option')}@h/0"]]
    ended = [subprocess.run(call, capture_output=True, text=True, env=told, check=False, timeout=60) for call in calls]
    assert ended[-1].returncode == 2
    return [text for one in ended for text in (one.stdout, one.stderr)]


def _files(*roots: Path) -> Iterator[str]:
    for path in (path for root in roots for path in root.rglob("*") if path.is_file()):
        yield path.read_bytes().decode("latin-1")


def _of_proc(pid: int) -> Iterator[str]:
    """What others may read of the daemon, and of its children, whose environment is no secret."""
    for name in ("cmdline", "comm", "status", "maps"):
        yield Path(f"/proc/{pid}/{name}").read_text(errors="replace")


def _of_child(daemon: Daemon) -> list[str]:
    """Have the status page ask doctor, and return all that can be read of that process."""
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    pages_of(daemon).get("/")
    found: list[str] = []

    def read() -> bool:
        for child in children.read_text().split():
            with suppress(OSError):
                path = Path("/proc", child)
                if (path / "cmdline").read_bytes() != Path(f"/proc/{daemon.pid}/cmdline").read_bytes():
                    found.extend((path / name).read_text(errors="replace") for name in ("cmdline", "environ"))
        return any("PATH=" in text for text in found)

    eventually(read, "doctor has begun")
    return found


def test_no_canary_is_seen_anywhere(daemon: Daemon, web: Web, nest: Nest) -> None:
    texts = _fail_everywhere(daemon, web, nest) + _shown_by_commands(daemon, nest)
    pages = pages_of(daemon)
    eventually(lambda: pages.status("/readyz") == 200, "it is ready")
    texts += _of_child(daemon)
    for page in ("/", "/metrics", "/readyz", "/livez"):
        texts.append(pages.get(page)[1])
    texts += [
        daemon.ready_line,
        daemon.log.read_text(),
        *_files(daemon.registry.parent, daemon.arena),
        *_of_proc(daemon.pid),
    ]
    used = " ".join(value for asked in web.asked for value in (asked.path, *asked.headers.values()))
    assert {"bearer_token env", "bearer_token file", "headers env", "headers file", "access_key_id env"} <= _seen(
        nest, [used]
    )
    assert len(nest.birds) >= CANARIES_MIN
    print(f"{len(nest.birds)} canaries in {len(texts)} texts of {sum(map(len, texts))} characters")
    assert _seen(nest, texts) == set()


def _seen(nest: Nest, texts: list[str]) -> set[str]:
    """Return whose canary stands in a text, also as base64 begins it."""
    forms: dict[str, tuple[Any, ...]] = {
        w: (b, base64.b64encode(f"me:{b}".encode()).decode()) for w, b in nest.birds.items()
    }
    return {what for what, birds in forms.items() for text in texts for bird in birds if bird in text}

"""Who gets the credentials of a prefix, and where redirects may lead."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import web_faults as faults
from kit.web import Web, serving
from kit.web_openers import files_of, opener_for, settings
from warmshelf.errors import InvalidConfig, SourceNotAllowed, SourceUnavailable

TOKEN = "canary-token-51c1"
FILE = {"w.tensors": b"x" * 100_000}


@pytest.fixture
def near() -> Iterator[Web]:
    with serving() as web:
        web.put("/m", FILE)
        web.put("/n", FILE)
        yield web


@pytest.fixture
def far() -> Iterator[Web]:
    with serving() as web:
        web.put("/m", FILE)
        yield web


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", TOKEN)


def authorizations(web: Web) -> list[str | None]:
    return [asked.headers.get("authorization") for asked in web.asked]


def test_a_token_is_sent_to_what_lies_below_its_prefix_and_no_further(near: Web) -> None:
    opener = opener_for([near.url], [settings(near.url), settings(f"{near.url}/m", bearer_token="env:TOKEN")])
    for directory in ("m", "n"):
        with opener.open(f"{near.url}/{directory}/w.tensors") as source:
            source.files()
    assert authorizations(near) == [f"Bearer {TOKEN}", None]


def test_a_user_and_headers_are_sent_as_they_are_now(near: Web, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    more = {"username": "me", "password": f"file:{password}", "headers": {"X-Key": "env:TOKEN"}}
    opener = opener_for([near.url], [settings(near.url, **more)])
    with opener.open(f"{near.url}/m/w.tensors") as source:
        source.files()
        password.write_text("second\n")
        source.fingerprint(["w.tensors"])
    sent = [base64.b64decode((value or "").removeprefix("Basic ")).decode() for value in authorizations(near)]
    assert sent == ["me:first", "me:second"]
    assert {asked.headers.get("x-key") for asked in near.asked} == {TOKEN}


def test_a_redirect_to_another_server_gets_no_credentials_but_those_of_its_own_prefix(
    near: Web, far: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T22, S11."""
    near.faults.append(faults.Redirect("*", to=lambda path: far.url + path))
    own = settings(f"{near.url}/m", bearer_token="env:TOKEN")
    for theirs, wanted in ((settings(far.url), None), (settings(far.url, bearer_token="env:OTHER"), "Bearer other")):
        far.asked.clear()
        monkeypatch.setenv("OTHER", "other")
        with opener_for([near.url, far.url], [own, theirs]).open(f"{near.url}/m/w.tensors") as source:
            assert source.read("w.tensors", 70_000, 10) == b"x" * 10
        assert set(authorizations(far)) == {wanted}
        assert TOKEN not in repr(far.asked)


@pytest.mark.parametrize("secret", [b"a\r\nX-Injected: 1", b"a\nb", b"\x00"])
def test_a_secret_that_no_header_can_hold_is_refused_and_not_shown(near: Web, tmp_path: Path, secret: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(secret + b"canary")
    opener = opener_for([near.url], [settings(near.url, bearer_token=f"file:{file}")])
    with opener.open(f"{near.url}/m/w.tensors") as source, pytest.raises(InvalidConfig) as refused:
        source.files()
    assert "canary" not in str(refused.value)
    assert near.asked == []


def test_a_secret_that_cannot_be_had_is_named(near: Web) -> None:
    opener = opener_for([near.url], [settings(near.url, bearer_token="env:NOT_SET")])
    with opener.open(f"{near.url}/m/w.tensors") as source, pytest.raises(InvalidConfig, match="NOT_SET"):
        source.files()


# --- redirects --------------------------------------------------------------


def test_a_redirect_inside_the_allowed_prefixes_is_followed_and_remembered(near: Web, far: Web) -> None:
    near.faults.append(faults.Redirect("*", to=lambda path: f"{far.url}{path}?Signature={TOKEN}", status=307))
    with opener_for([near.url, far.url], [settings(near.url), settings(far.url)]).open(
        f"{near.url}/m/w.tensors"
    ) as source:
        assert source.files() == {"w.tensors": 100_000}
        assert source.read("w.tensors", 90_000, 10_000) == b"x" * 10_000
    assert len(near.asked) == 1
    assert {asked.path for asked in far.asked} == {f"/m/w.tensors?Signature={TOKEN}"}


def test_a_target_that_was_lent_for_a_time_is_asked_for_anew(near: Web, far: Web) -> None:
    """S14."""
    near.faults.append(faults.Redirect("*", to=lambda path: f"{far.url}{path}?Signature={TOKEN}"))
    far.faults.append(faults.Status("*", after=1, times=1, status=403))
    with opener_for([near.url, far.url], [settings(near.url), settings(far.url)]).open(
        f"{near.url}/m/w.tensors"
    ) as source:
        assert source.read("w.tensors", 90_000, 10_000) == b"x" * 10_000
    assert len(near.asked) == 2


def test_a_chain_of_redirects_ends_after_five(near: Web) -> None:
    near.faults.append(faults.Redirect("*", to=lambda path: f"/n/{path.count('/')}{path}"))
    with pytest.raises(SourceUnavailable, match="more than 5"):
        files_of(opener_for([near.url], [settings(near.url)]), f"{near.url}/m/w.tensors")
    assert len(near.asked) <= 7


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "//elsewhere.example/w.tensors",
        "ftp://127.0.0.1/w.tensors",
        "/outside/w.tensors",
        "../../outside/w.tensors",
        "/m/%2e%2e/outside/w.tensors",
        "http://user:pw@127.0.0.1/m/w.tensors",
        "http://[::1/",
        "http://127.0.0.1:99999/",
        "/m/w.tensors#fragment",
        "/m/w\\tensors",
    ],
)
def test_a_redirect_to_outside_is_refused_without_saying_where_to(near: Web, location: str) -> None:
    """S11: each hop is judged like a URL of its own."""
    near.faults.append(faults.Redirect("*", to=lambda path: location))
    with pytest.raises(SourceNotAllowed) as refused:
        files_of(opener_for([f"{near.url}/m"], [settings(near.url)]), f"{near.url}/m/w.tensors")
    assert len(near.asked) == 1
    assert refused.value.message == f"{near.url}/m/w.tensors is redirected to outside the allowed prefixes"


def test_the_body_of_a_redirect_or_of_an_error_is_not_read_beyond_a_bound(near: Web) -> None:
    """S10."""

    class EndlessBody(faults.FaultOf):
        sent = 0

        def answer(self, handler: object, asked: object) -> bool:
            handler.head(403, {"Content-Encoding": "gzip", "Connection": "close"})  # type: ignore[attr-defined]
            try:
                while self.sent < 64 << 20:
                    handler.wfile.write(b"\0" * 65536)  # type: ignore[attr-defined]
                    EndlessBody.sent += 65536
            except OSError:
                pass
            handler.close_connection = True  # type: ignore[attr-defined]
            return True

    near.faults.append(EndlessBody("*"))
    with pytest.raises(SourceUnavailable, match="403"):
        files_of(opener_for([near.url], [settings(near.url)]), f"{near.url}/m/w.tensors")
    assert EndlessBody.sent < 16 << 20

"""The spellings of URLs, and what a prefix allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.errors import InvalidSpec, SourceNotAllowed
from warmshelfd.sources.url_prefixes import URL_BYTES_MAX, UrlPrefixes, parse_url

PORTS = {"http": 80, "https": 443}
SECRET = "hunter2-canary"


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("https://host", "https://host/"),
        ("HTTPS://Host.Example/A", "https://host.example/A"),
        ("https://host:443/a", "https://host/a"),
        ("https://host:80/a", "https://host:80/a"),
        ("http://host:80/a", "http://host/a"),
        ("https://host/%7eu/%6D%2b", "https://host/~u/m%2B"),
        ("https://host/a b".replace(" ", "%20"), "https://host/a%20b"),
        ("https://host/\u00e9/e\u0301", "https://host/%C3%A9/e%CC%81"),
        ("https://host/a/", "https://host/a/"),
        ("https://host/a+b@c:d;e=f", "https://host/a+b@c:d;e=f"),
        ("https://[2001:DB8:0:0::1]:8443/x", "https://[2001:db8::1]:8443/x"),
        ("https://192.0.2.7/x", "https://192.0.2.7/x"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("https://a_b.example/...", "https://a_b.example/..."),
        ("https://host/100%25", "https://host/100%25"),
    ],
)
def test_every_url_has_one_spelling(text: str, spelling: str) -> None:
    assert str(parse_url(text, PORTS)) == spelling
    assert str(parse_url(spelling, PORTS)) == spelling


REFUSED = [
    "",
    "host/a",
    "https:/host/a",
    "https:host/a",
    "//host/a",
    "ftp://host/a",
    "file:///etc/passwd",
    "https:///a",
    "https://:443/a",
    "https://host:/a",
    "https://host:0/a",
    "https://host:0443/a",
    "https://host:65536/a",
    "https://host:4 43/a",
    "https://host:+443/a",
    "https://host:٤٤٣/a",
    "https://user@host/a",
    f"https://user:{SECRET}@host/a",
    f"https://{SECRET}%40host/a",
    "https://host%2eexample/a",
    "https://host./a",
    "https://.host/a",
    "https://a..b/a",
    "https://-a.example/a",
    "https://bücher.example/a",
    "https://\uff48ost/a",
    "https://host。example/a",
    "https://①②⑦.0.0.1/a",
    f"https://host/a?X-Amz-Signature={SECRET}",
    "https://host/a?",
    f"https://host/a#{SECRET}",
    "https://host/a#",
    "https://host\\@evil/a",
    "https://host/a\\..\\b",
    "https:\\\\host\\a",
    "https://host/a/../b",
    "https://host/a/./b",
    "https://host/..",
    "https://host/%2e%2e/b",
    "https://host/.%2E/b",
    "https://host/..;x/b",
    "https://host/%2e%2e;/b",
    "https://host/a//b",
    "https://host//a",
    "https://host/a%2fb",
    "https://host/a%5Cb",
    "https://host/a%00b",
    "https://host/a%0d%0aX: y",
    "https://host/a%7f",
    "https://host/%252e%252e/b",
    "https://host/a%",
    "https://host/a%zz",
    "https://host/a b",
    "https://host/a\nb",
    "https://host/a\tb",
    " https://host/a",
    "https://host/a\0",
    "https://host/\ud800",
    "https://2130706433/a",
    "https://0x7f000001/a",
    "https://0x7f.1/a",
    "https://0177.0.0.1/a",
    "https://127.1/a",
    "https://127.0.0.1./a",
    "https://1.2.3.256/a",
    "https://0x/a",
    "https://[::1/a",
    "https://::1/a",
    "https://[fe80::1%25eth0]/a",
    "https://[fe80::1%eth0]/a",
    "https://[127.0.0.1]/a",
    "https://[v1.x]/a",
    "https://host/" + "a" * URL_BYTES_MAX,
    "https://" + "a" * 64 + ".example/",
    "https://" + ".".join(["a" * 50] * 6) + "/",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_url(text, PORTS)
    assert SECRET not in str(refused.value) + repr(refused.value.details)


def test_the_query_of_a_redirect_is_kept_and_never_shown() -> None:
    url = parse_url(f"https://host/a?sig={SECRET}", PORTS, query=True)
    assert url.query == f"?sig={SECRET}"
    assert SECRET not in f"{url} {url!r} {url.origin}"


segments = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.lists(segments, min_size=1, max_size=4))
def test_whatever_is_accepted_is_ascii_and_its_own_spelling(parts: list[str]) -> None:
    try:
        url = parse_url("https://host/" + "/".join(parts), PORTS)
    except InvalidSpec:
        return
    assert str(url).isascii()
    assert parse_url(str(url), PORTS) == url


@pytest.mark.parametrize("prefix", ["https://host/a/b", "https://host/a/b/"])
def test_a_prefix_allows_itself_and_whole_parts_below(prefix: str) -> None:
    prefixes = UrlPrefixes([prefix])
    for inside in ("https://host/a/b", "https://host/a/b/", "https://host/a/b/c", "https://host/a/b/c/d"):
        prefixes.check(inside)
    for outside in (
        "https://host/a/bc",
        "https://host/a",
        "https://host/a/B/c",
        "https://host/",
        "http://host/a/b/c",
        "https://host:8443/a/b/c",
        "https://host.evil/a/b/c",
        "https://evil/host/a/b/c",
    ):
        with pytest.raises(SourceNotAllowed):
            prefixes.check(outside)


def test_a_whole_server_may_be_allowed_and_nothing_is_by_default() -> None:
    assert UrlPrefixes(["https://host/"]).allow("https://host/a")
    assert not UrlPrefixes(["https://host/"]).allow("https://host2/a")
    assert not UrlPrefixes([]).allow("https://host/a")

"""How values of options are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf._sizes import parse_size
from warmshelfd.options import (
    Listen,
    Share,
    parse_advertised,
    parse_count,
    parse_listen,
    parse_network,
    parse_seconds,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64GiB", 64 << 30),
        ("512MiB", 512 << 20),
        ("1.5KiB", 1536),
        ("0.5 TiB", 1 << 39),
        ("500MB", 500_000_000),
        ("2kB", 2000),
        (" 4096 ", 4096),
        ("7B", 7),
        (4096, 4096),
        (0, 0),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: object, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "64Gib",
        "64G",
        "-1",
        "1e9",
        "1,5GiB",
        "0x10",
        "64GiB!",
        "٣",
        -1,
        1.5,
        True,
        None,
        "9" * 30,
        2**63,
        "0.3B",
    ],
)
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a size is"):
        parse_size(text)


@given(st.integers(0, 2**20), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_a_size_with_a_unit_is_that_many_of_it(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * parse_size(f"1{unit}")


def test_a_share_is_bytes_or_percent_of_a_whole_known_later() -> None:
    assert parse_share("20%").of(10 << 30) == 2 << 30
    assert parse_share("100 %").of(7) == 7
    assert parse_share("0%").of(7) == 0
    assert parse_share("33%").of(100 << 40) == (100 << 40) * 33 // 100
    assert parse_share("1GiB") == parse_share(1 << 30) == Share(size_bytes=1 << 30)
    assert parse_share("1GiB").of(7) == 1 << 30


@pytest.mark.parametrize(("text", "why"), [("101%", "at most 100%"), ("1.5%", "a size is"), ("%", "a size is")])
def test_what_is_no_share_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_share(text)


@pytest.mark.parametrize(("value", "count"), [(5, 5), ("5", 5), (" 12 ", 12), (0, 0)])
def test_a_count_is_a_whole_number(value: object, count: int) -> None:
    assert parse_count(value) == count


@pytest.mark.parametrize("value", ["", "five", "1.0", 1.0, True, None, "٣", "9" * 20, "1_000"])
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_count(value)


@pytest.mark.parametrize(("value", "seconds"), [(5, 5.0), (0.5, 0.5), ("2.5", 2.5)])
def test_seconds_are_a_number(value: object, seconds: float) -> None:
    assert parse_seconds(value) == seconds


@pytest.mark.parametrize("value", ["", "5s", "nan", "inf", True, None, float("inf"), 10**400])
def test_what_is_no_number_of_seconds_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        parse_seconds(value)


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("unix:///run/warmshelf/api.sock", Listen("unix", path="/run/warmshelf/api.sock")),
        ("127.0.0.1:50051", Listen("tcp", host="127.0.0.1", port=50051)),
        ("localhost:0", Listen("tcp", host="localhost", port=0)),
        ("node-1.example.org:65535", Listen("tcp", host="node-1.example.org", port=65535)),
        ("[::1]:50051", Listen("tcp", host="::1", port=50051)),
    ],
)
def test_an_address_is_a_socket_or_host_and_port_and_is_written_as_it_was_read(text: str, listen: Listen) -> None:
    assert parse_listen(text) == listen
    assert str(listen) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("unix:run/api.sock", "absolute path"),
        ("unix://run/api.sock", "absolute path"),
        ("unix:///run/", "absolute path"),
        ("unix:///run/a\0b", "absolute path"),
        ("/run/api.sock", "HOST:PORT"),
        (":50051", "0.0.0.0:PORT"),
        ("host", "HOST:PORT"),
        ("host:", "HOST:PORT"),
        ("host:http", "HOST:PORT"),
        ("host:-1", "HOST:PORT"),
        ("host:65536", "port 65536 is above 65535"),
        ("::1:50051", "in brackets"),
        ("[::g]:50051", "no IPv6 address"),
        ("[127.0.0.1]:50051", "no IPv6 address"),
        ("http://host:80", "a name"),
        ("a b:80", "a name"),
        ("", "HOST:PORT"),
        (50051, "text"),
    ],
)
def test_what_is_no_address_is_refused_with_what_is_right(text: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_listen(text)


def test_a_socket_path_may_have_as_many_bytes_as_the_kernel_takes_and_no_more() -> None:
    longest = "/" + "x" * 106
    assert parse_listen(f"unix://{longest}").path == longest
    with pytest.raises(ValueError, match="has 108 bytes, at most 107"):
        parse_listen(f"unix://{longest}x")
    with pytest.raises(ValueError, match="has 109 bytes"):
        parse_listen("unix:///" + "ä" * 54)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1:50051"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[FD00::0:1]", "[fd00::1]:50051"),
        ("[::1]:7", "[::1]:7"),
    ],
)
def test_what_others_are_told_is_an_ip_and_the_port_that_is_listened_on_unless_another_is_said(
    text: str, address: str
) -> None:
    assert parse_advertised(text).at(50051) == address


@pytest.mark.parametrize(
    "wrong", ["", "0.0.0.0", "::1", "[::]", "[10.0.0.1]", "example.org", "10.0.0.1:0", "10.0.0.1:99999", "10.0.0", 7]
)
def test_where_nobody_can_connect_to_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="IP address that others can connect to"):
        parse_advertised(wrong)


@pytest.mark.parametrize("wrong", ["", "10.0.0.1/8", "10.0.0.0/33", "example.org", "10.0.0.0/8,fd00::/8"])
def test_a_network_has_its_prefix_and_nothing_behind_it(wrong: str) -> None:
    assert parse_network("10.0.0.0/8").num_addresses == 1 << 24
    with pytest.raises(ValueError, match=r"as in 10\.0\.0\.0/8"):
        parse_network(wrong)

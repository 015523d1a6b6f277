"""What the daemon is told: where values come from, and what is wrong with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import ValidationError

from warmshelf.errors import InvalidConfig
from warmshelfd.config import parse
from warmshelfd.formats.base import FormatLimits
from warmshelfd.memory.pinning import PinPolicy
from warmshelfd.options import Listen, Share
from warmshelfd.settings import Settings
from warmshelfd.sources.settings import SourceSettings, settings_for

HOME = {"HOME": "/home/user"}


def told(*argv: str, **environ: str) -> Settings:
    """The settings for this command line and environment, which make no warning."""
    settings, warnings = parse(argv, HOME | environ)
    assert warnings == []
    return settings


def refusal(*argv: str, **environ: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        parse(argv, HOME | environ)
    return caught.value.message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "warmshelfd.toml"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- no option at all --------------------------------------------------------


def test_with_no_option_it_serves_one_user_on_one_machine(here: Path) -> None:
    settings = told(XDG_RUNTIME_DIR="/run/user/7/", XDG_STATE_HOME="/home/user/state")
    assert settings.listen == (Listen("unix", path="/run/user/7/warmshelf/api.sock"),)
    assert settings.arena == f"/dev/shm/warmshelf-{os.getuid()}"
    assert settings.budget is None
    assert settings.registry == "sqlite:///home/user/state/warmshelf/registry.sqlite"
    assert settings.pin is PinPolicy.PREFER
    assert settings.allow_source == (str(here),)
    assert not settings.purge


def test_without_xdg_variables_it_takes_the_places_that_remain() -> None:
    settings = told(XDG_RUNTIME_DIR="", XDG_STATE_HOME="not/absolute")
    assert settings.listen[0].path == f"/tmp/warmshelf-{os.getuid()}/api.sock"
    assert settings.registry == "sqlite:///home/user/.local/state/warmshelf/registry.sqlite"


@pytest.mark.parametrize("argv", [(), ("--listen", "unix:///run/a.sock"), ("--budget", "1GiB")])
def test_the_current_directory_is_allowed_while_nobody_else_can_connect(argv: Sequence[str], here: Path) -> None:
    assert told(*argv).allow_source == (str(here),)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:50051"])
def test_with_a_tcp_address_no_source_is_allowed_unless_it_is_said(listen: str, here: Path) -> None:
    assert told("--listen", "unix:///run/a.sock", "--listen", listen).allow_source == ()
    assert told("--listen", listen, "--allow-source", "file:///models").allow_source == ("file:///models",)


def test_in_the_root_directory_no_source_is_allowed_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert told().allow_source == ()


def test_in_a_directory_that_is_gone_no_source_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert told("--arena", "/dev/shm/arena").allow_source == ()


# --- where values come from --------------------------------------------------


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text('budget = "1GiB"\nadapter_floor = "1%"\npin = "off"\n')
    settings = told("--config", str(file), "--budget", "3GiB", WARMSHELF_BUDGET="2GiB", WARMSHELF_ADAPTER_FLOOR="2%")
    assert (settings.budget, settings.adapter_floor, settings.pin) == (3 << 30, Share(percent=2), PinPolicy.OFF)


def test_the_environment_may_name_the_file(file: Path) -> None:
    file.write_text("budget = 4096\n")
    assert told(WARMSHELF_CONFIG=str(file)).budget == 4096


def test_a_list_replaces_that_of_a_lower_source_as_a_whole(file: Path) -> None:
    file.write_text('allow_source = ["/a", "/b"]\n')
    assert told("--config", str(file), "--allow-source", "/c").allow_source == ("/c",)


def test_options_may_be_repeated_or_take_several_values() -> None:
    settings = told(
        "--listen", "unix:///a", "--listen", "localhost:1", "localhost:2", "--allow-source", "/a", "file:///b"
    )
    assert [str(listen) for listen in settings.listen] == ["unix:///a", "localhost:1", "localhost:2"]
    assert settings.allow_source == ("/a", "file:///b")


@pytest.mark.parametrize("text", ["/a,/b", "/a /b", " /a,\n/b, "])
def test_lists_in_the_environment_are_split_at_commas_and_blanks(text: str) -> None:
    assert told(WARMSHELF_ALLOW_SOURCE=text).allow_source == ("/a", "/b")


def test_a_list_in_the_file_may_be_a_single_text_and_keys_may_have_hyphens(file: Path) -> None:
    file.write_text('listen = "unix:///a"\nallow-source = "/a b"\n')
    settings = told("--config", str(file))
    assert (settings.listen[0].path, settings.allow_source) == ("/a", ("/a b",))


def test_every_setting_but_purge_can_be_given_in_the_environment_and_in_the_file(file: Path) -> None:
    special = {"listen": "localhost:1", "arena": "/x", "pin": "off", "registry": "sqlite:///x", "allow_source": "/x"}
    special |= {"http": "localhost:2", "log_format": "text", "registry_copy": "/x", "registry_password": "env:X"}
    special |= {"restore": "false", "anonymous_roles": "reader", "insecure": "true", "traceable": "true"}
    special |= {"advertise": "10.0.0.1", "neighbours": "10.0.0.0/8", "trace_endpoint": "http://localhost:4318"}
    sizes = {"chunk_bytes": "128KiB", "small_chunk_bytes": "64KiB", "flight_bytes_max": "1GiB", "adapter_floor": "3%"}
    sizes |= {"message_bytes_max": "64KiB"}
    elsewhere = {
        "purge",
        "source",
        "identity",
        "tenant",
        "listen_cert_file",
        "listen_key_file",
        "listen_client_ca_file",
    }
    values = {name: (special | sizes).get(name, "77") for name in Settings.model_fields if name not in elsewhere}
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()))
    by_file = told("--config", str(file))
    by_environment = told(**{f"WARMSHELF_{name.upper()}": value for name, value in values.items()})
    assert by_file == by_environment
    assert all(getattr(by_file, name) != getattr(told(), name) for name in values if name != "small_chunk_bytes")


def test_an_empty_variable_counts_as_unset() -> None:
    assert told(WARMSHELF_BUDGET="", WARMSHELF_LISTEN=" ").budget is None


def test_an_unknown_variable_warns_and_one_that_others_read_does_not() -> None:
    """Kubernetes injects variables named for a service."""
    environ = {"WARMSHELF_PORT": "tcp://10.0.0.1:50051", "WARMSHELF_budget": "1GiB", "OTHER": "x"}
    settings, warnings = parse([], HOME | environ)
    assert [re.findall("WARMSHELF_[A-Za-z]+", warning) for warning in warnings] == [
        ["WARMSHELF_PORT"], ["WARMSHELF_budget"]
    ]  # fmt: skip
    assert settings.budget is None
    assert (
        told(WARMSHELF_ADDRESS="unix:///x", WARMSHELF_FAILPOINTS="", WARMSHELF_ARENA="/dev/shm/x").arena == "/dev/shm/x"
    )


def test_without_any_home_the_registry_is_kept_in_tmp_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)  # a container's arbitrary user, in no list of users
    settings, warnings = parse([], {})
    assert settings.registry == "sqlite:///tmp/warmshelf-3999999999/registry.sqlite"
    assert len(warnings) == 1
    assert "HOME" in warnings[0]


def test_a_settings_object_reads_no_environment_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDGET", "1GiB")
    monkeypatch.setenv("WARMSHELF_BUDGET", "1GiB")
    listen, floor = (Listen("unix", path="/a"),), Share(percent=5)
    settings = Settings(listen=listen, arena="/a", registry="sqlite:///a", adapter_floor=floor)
    assert (settings.budget, settings.listen, settings.adapter_floor) == (None, listen, floor)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        told().budget = 1


# --- what is wrong with them -------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--budget", "64Gib"], ["--budget", "64Gib", "such as 64GiB"]),
        (["--budget", "0"], ["--budget", "'0'", "greater than 0"]),
        (["--adapter-floor", "120%"], ["--adapter-floor", "120%", "at most 100%"]),
        (["--pin", "always"], ["--pin", "always", "'prefer', 'require' or 'off'"]),
        (["--listen", "unix:///a", "--listen", "nowhere"], ["--listen", "nowhere", "HOST:PORT"]),
        (["--listen", "localhost:1", "localhost:1"], ["address twice"]),
        (["--listen", "unix:///" + "x" * 107], ["108 bytes, at most 107"]),
        (["--allow-source", "models"], ["--allow-source", "models", "absolute path"]),
        (["--allow-source", "ftp://x/y"], ["--allow-source", "ftp://x/y", "no source of scheme 'ftp'", "https"]),
        (["--arena", ""], ["--arena", "directory"]),
        (["--registry", "sqlite://host/x"], ["--registry", "absolute"]),
        (["--budgte", "1GiB"], ["--budgte"]),
        (["--bud", "1GiB"], ["--bud"]),
        (["--budget"], ["--budget", "expected one argument"]),
        (["word"], ["word"]),
    ],
)
def test_a_bad_value_is_refused_with_its_option_its_text_and_what_is_right(argv: list[str], parts: list[str]) -> None:
    message = refusal(*argv)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("size", ["1", "7", "96KiB", "4MiB", "64MiB", "32KiB"])
def test_a_chunk_size_that_grpc_or_the_arithmetic_cannot_take_is_refused_at_the_start(size: str) -> None:
    """B48: too large a chunk is no surprise for the first reader."""
    message = refusal(WARMSHELF_CHUNK_BYTES=size)
    assert "WARMSHELF_CHUNK_BYTES" in message
    assert size in message
    assert "power of two from 64KiB to 2MiB" in message


@pytest.mark.parametrize("size", ["64KiB", "128KiB", "2MiB"])
def test_other_chunk_sizes_are_fine(size: str) -> None:
    assert told(WARMSHELF_CHUNK_BYTES=size).chunk_bytes >= 64 << 10


@pytest.mark.parametrize(
    "environ",
    [
        {"WARMSHELF_CHUNK_BYTES": "64KiB", "WARMSHELF_SMALL_CHUNK_BYTES": "128KiB"},
        {"WARMSHELF_FLIGHT_BYTES_MAX": "512KiB"},
    ],
)
def test_limits_that_contradict_each_other_are_refused(environ: dict[str, str]) -> None:
    assert "flight_bytes_max" in refusal(**environ)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_limit_is_a_positive_whole_number(value: str) -> None:
    message = refusal(WARMSHELF_STREAMS_MAX=value)
    assert "WARMSHELF_STREAMS_MAX" in message
    assert value in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("budgte = 1\n", ["'budgte'", "no option", "'budget'"]),
        ("chunk-size = 1\n", ["'chunk-size'", "'chunk_bytes'"]),
        ("x = 1\n", ["'x'", "the nearest is"]),
        ("purge = true\n", ["'purge'", "no option"]),
        ("[limits]\nstreams_max = 1\n", ["'limits'", "no option"]),
        ("budget = \n", ["not TOML"]),
        (f"budget = {'[' * 100_000}", ["not TOML", "recursion"]),
        ("message_bytes_max = 2147483648\n", ["message_bytes_max in", "2147483647"]),
        ("keepalive_seconds = 1e300\n", ["keepalive_seconds in", "2147483"]),
        ("streams_max = true\n", ["streams_max in", "True", "whole number"]),
        ("listen = 5\n", ["listen in"]),
        ("listen = []\n", ["listen in"]),
        ("pin = 3\n", ["pin in", "'prefer'"]),
    ],
)
def test_a_bad_file_is_refused_with_its_name_the_key_and_what_is_right(file: Path, text: str, parts: list[str]) -> None:
    file.write_text(text)
    message = refusal("--config", str(file))
    for part in [*parts, str(file)]:
        assert part in message


def test_a_file_that_cannot_be_read_is_refused_by_its_name(file: Path, tmp_path: Path) -> None:
    assert str(file) in refusal("--config", str(file))
    assert str(tmp_path) in refusal("--config", str(tmp_path))
    file.write_bytes(b"\xff\xfe")
    assert "not TOML" in refusal(WARMSHELF_CONFIG=str(file))


def test_an_option_of_a_later_release_is_refused_and_not_ignored() -> None:
    message = refusal("--registry", "etcd://h")
    assert "--registry" in message
    assert "not offered by this release" in message
    assert "not offered by this release" in refusal(WARMSHELF_REGISTRY="etcd://h")


def test_the_operators_pages_are_off_unless_they_are_given_a_host_and_a_port() -> None:
    assert told().http is None
    assert str(told("--http", "[::1]:9000").http) == "[::1]:9000"
    assert "HOST:PORT" in refusal("--http", "unix:///a")


def test_no_error_shows_the_password_of_a_registry() -> None:
    """B33: secrets stay out of errors."""
    for message in (
        refusal("--registry", "redis://:SECRET2@host"),
        refusal(WARMSHELF_REGISTRY="rediss://user:SECRET2@host/0"),
        refusal("--registry", "sqlite://user:SECRET2@host/x"),
    ):
        assert "SECRET2" not in message


# --- limits, and the commands that end at once -------------------------------


def test_every_limit_of_the_formats_is_a_setting_with_the_same_default() -> None:
    assert told().format_limits() == FormatLimits()
    assert told(WARMSHELF_FORMAT_HEADER_BYTES_MAX="1MiB").format_limits().header_bytes_max == 1 << 20
    assert {f"format_{field.name}" for field in fields(FormatLimits)} <= set(Settings.model_fields)


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_adapters_floor_is_a_share_of_the_budget_or_bytes() -> None:
    assert told("--adapter-floor", "25%").adapter_floor_bytes(1000) == 250
    assert told("--adapter-floor", "1KiB").adapter_floor_bytes(1000) == 1024
    assert told("--adapter-floor", "0").adapter_floor_bytes(1000) == 0
    assert told().adapter_floor_bytes(1000) == 200


def test_a_relative_arena_is_meant_from_here(here: Path) -> None:
    assert told("--arena", "arena").arena == str(here / "arena")


def test_purge_is_an_option_of_the_command_line() -> None:
    assert told("--purge").purge


@pytest.mark.parametrize(("option", "text"), [("--version", "warmshelfd "), ("--help", "--adapter-floor")])
def test_version_and_help_are_printed(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse([option], HOME)
    assert caught.value.code == 0
    assert text in capsys.readouterr().out


def test_reading_the_configuration_needs_no_torch_and_no_numpy() -> None:
    script = "import sys, warmshelfd.config; print(sorted({'torch', 'numpy', 'tensorizer'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_what_is_said_of_remote_sources_stands_in_the_file_and_names_secrets_only(file: Path) -> None:
    file.write_text(
        '[[source]]\nprefix = "s3://models/loras"\nendpoint = "http://weed:8333"\naccess_key_id = "env:KEY"\n'
    )
    (source,) = told("--config", str(file)).source
    assert (source.prefix, source.endpoint, source.access_key_id) == (
        "s3://models/loras",
        "http://weed:8333",
        "env:KEY",
    )
    file.write_text('[[source]]\nprefix = "s3://models"\naccess_key_id = "AKIA-CANARY"\n')
    with pytest.raises(InvalidConfig) as caught:
        told("--config", str(file))
    assert "CANARY" not in str(caught.value)
    assert "env:NAME" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('[[source]]\nprefx = "s3://models"', ["source in", "'prefx' is no key", "'prefix'"]),
        ('[[source]]\nprefix = "s3://models"\nregionn = "x"', ["'regionn' is no key", "'region'"]),
        ('[[identity]]\nname = "x"\nrole = ["reader"]', ["identity in", "'role' is no key", "'roles'"]),
        ('[[source]]\nregion = "x"', ["source in", "prefix: Field required"]),
        ('[[source]]\nprefix = "https://a/"\nheaders = { X = "canary" }', ["headers.X: a secret is named as env:NAME"]),
    ],
)
def test_what_is_wrong_in_a_table_is_named_with_the_nearest_key(file: Path, table: str, words: list[str]) -> None:
    file.write_text(table)
    with pytest.raises(InvalidConfig) as caught:
        told("--config", str(file))
    assert [word for word in words if word not in str(caught.value)] == []
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("prefix", "is_below"),
    [("s3://b", True), ("s3://b/", True), ("s3://b/loras", True), ("s3://b/lor", False), ("s3://b/loras/x/y", False)],
)
def test_a_prefix_counts_in_whole_parts(prefix: str, is_below: bool) -> None:
    found = settings_for("s3://b/loras/x", [SourceSettings(prefix=prefix)])
    assert (found is not None) == is_below

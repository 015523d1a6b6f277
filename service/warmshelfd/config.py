"""Where the daemon's settings come from.

A value comes from the command line, else from the environment (``WARMSHELF_*``),
else from the TOML file, else from the defaults here. This module reads them and
says what is wrong with them. It opens nothing but that file, and does not know
whether an arena, a registry or an address can be had.
"""

from __future__ import annotations

import argparse
import difflib
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import TomlConfigSettingsSource

from warmshelf.errors import InvalidConfig
from warmshelfd import __version__
from warmshelfd.identities import IdentitySettings
from warmshelfd.settings import Settings
from warmshelfd.sources.settings import SourceSettings
from warmshelfd.tenant_settings import TenantSettings

_PREFIX = "WARMSHELF_"
_SQLITE = "sqlite://"
_LISTS = frozenset({"listen", "allow_source", "preload", "neighbours", "anonymous_roles"})
_KNOWN = frozenset(Settings.model_fields) - {"purge"}
_TABLES: Mapping[str, type[BaseModel]] = {
    "source": SourceSettings,
    "identity": IdentitySettings,
    "tenant": TenantSettings,
}
_ONLY_IN_FILE = frozenset(_TABLES)
_FLAGS = frozenset({"insecure"})
_OF_CLIENTS = frozenset({"address", "daemon_uid", "tls_ca", "tls_cert", "tls_key", "token_file", "tenant"})
_NOT_OURS = frozenset({"config", "failpoints"}) | _OF_CLIENTS
"""Variables that are read elsewhere: by ``parse``, by clients, by ``failpoints``."""
_MAY_HOLD_SECRETS = frozenset({"trace_endpoint", "registry", "registry_password"}) | _ONLY_IN_FILE


@dataclass(frozen=True, slots=True)
class _Given:
    """A value, and where it comes from in words for people."""

    value: Any
    origin: str


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Return the settings, and warnings to show.

    ``--help`` and ``--version`` print and exit. The file named by ``--config`` or
    ``WARMSHELF_CONFIG`` is read.

    Raises:
        InvalidConfig: names the option, its value, and what is right.
    """
    command_line = _from_command_line(argv)
    environment, warnings = _from_environment(environ)
    path = command_line.pop("config", _Given(environ.get(f"{_PREFIX}CONFIG", ""), "")).value
    given = {**_from_file(str(path)), **environment, **command_line}
    settings = _settings({**_defaults(environ, warnings), **given})
    places = {name: _beside(settings) for name in ("spool", "spool_staging") if name not in given}
    settings = settings.model_copy(update=places)  # what is pushed belongs to its registrations
    if "allow_source" not in given and all(listen.kind == "unix" for listen in settings.listen):
        settings = settings.model_copy(update={"allow_source": _here()})
    return settings, warnings + [
        f"plain TCP on {listen}: whoever reaches it may do what anonymous_roles says, with no identity"
        for listen in settings.listen
        if settings.insecure and not listen.is_local
    ]


def _settings(given: Mapping[str, _Given]) -> Settings:
    try:
        return Settings(**{name: _as_list(name, one.value) for name, one in given.items()})
    except ValidationError as error:
        found = error.errors()
    raise _refusal(next((one for one in found if one["type"] == "extra_forbidden"), found[0]), given)


def _refusal(found: ErrorDetails, given: Mapping[str, _Given]) -> InvalidConfig:
    """Return what the library found, in our words: whose value it is, and where in a table."""
    name, *inner = map(str, found["loc"]) if found["loc"] else ("",)
    why = found["msg"].removeprefix("Value error, ")
    if name not in given:
        return InvalidConfig(why)
    keys = [key for key in inner if not key.isdecimal()]
    if found["type"] == "extra_forbidden" and name in _TABLES:
        (nearest,) = difflib.get_close_matches(keys[-1], sorted(_TABLES[name].model_fields), n=1, cutoff=0)
        why = f"{keys[-1]!r} is no key of it; the nearest is {nearest!r}"
    elif keys:
        why = f"{'.'.join(keys)}: {why}"
    shown = "" if name in _MAY_HOLD_SECRETS else f" {str(found['input'])[:200]!r}"
    return InvalidConfig(f"{given[name].origin}{shown}: {why}", option=name)


def _as_list(name: str, value: Any) -> Any:
    return [value] if name in _LISTS and isinstance(value, str) else value


def _defaults(environ: Mapping[str, str], warnings: list[str]) -> dict[str, _Given]:
    """Return what serves one user on one machine."""
    user = f"warmshelf-{os.getuid()}"
    runtime = _absolute(environ.get("XDG_RUNTIME_DIR"))
    home = _absolute(environ.get("HOME")) or _home()
    state = _absolute(environ.get("XDG_STATE_HOME")) or (f"{home}/.local/state" if home else "")
    if not state:
        warnings.append(f"neither XDG_STATE_HOME nor HOME is set: /tmp/{user} keeps the registry, a reboot may lose it")
    defaults = {
        "listen": f"unix://{runtime}/warmshelf/api.sock" if runtime else f"unix:///tmp/{user}/api.sock",
        "arena": f"/dev/shm/{user}",  # noqa: S108 - the arena makes it 0700 and checks its owner
        "registry": f"sqlite://{state}/warmshelf/registry.sqlite" if state else f"sqlite:///tmp/{user}/registry.sqlite",
        "registry_copy": f"{state}/warmshelf/registry.sqlite" if state else f"/tmp/{user}/registry.sqlite",  # noqa: S108
    }
    return {name: _Given(value, f"the default of {name}") for name, value in defaults.items()}


def _beside(settings: Settings) -> str:
    """Return the spool beside the file that has the registrations, and named for it: daemons may share a directory."""
    is_file = settings.registry.startswith(_SQLITE)
    path = settings.registry.removeprefix(_SQLITE) if is_file else settings.registry_copy
    return os.path.splitext(path)[0] + ".spool"


def _absolute(path: str | None) -> str:
    """Return the directory without a slash at its end; "" unless it is absolute."""
    return path.rstrip("/") if path and path.startswith("/") else ""


def _home() -> str:
    try:
        return _absolute(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return ""


def _here() -> tuple[str, ...]:
    """Return the current directory as the only allowed source, unless that would be everything."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return ()
    return () if here == "/" else (here,)


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, _Given], list[str]]:
    """Return the options among the variables, and a warning for each that is none; an empty one counts as unset."""
    given, warnings = {}, []
    for variable in sorted(name for name, value in environ.items() if name.startswith(_PREFIX) and value.strip()):
        name = variable.removeprefix(_PREFIX).lower()
        if name in _KNOWN - _ONLY_IN_FILE and variable.isupper():
            value = environ[variable]
            given[name] = _Given(re.split(r"[,\s]+", value.strip(", ")) if name in _LISTS else value, variable)
        elif name not in _NOT_OURS:
            warnings.append(f"the environment variable {variable} is no option of warmshelfd")
    return given, warnings


def _from_file(path: str) -> dict[str, _Given]:
    if not path:
        return {}
    if not os.path.isfile(path):  # the library would pass over it
        raise InvalidConfig(f"there is no file {path!r}", path=path)
    try:
        table = TomlConfigSettingsSource(Settings, Path(path)).toml_data
    except OSError as error:
        raise InvalidConfig(f"the file {path!r} cannot be read: {error.strerror}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"the file {path!r} is not TOML: {error}", path=path) from error
    given = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _KNOWN:
            nearest = difflib.get_close_matches(name, sorted(_KNOWN), n=1, cutoff=0)[0]
            raise InvalidConfig(f"{key!r} in {path!r} is no option; the nearest is {nearest!r}", path=path, option=key)
        given[name] = _Given(value, f"{key} in {path!r}")
    return given


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidConfig(message)


def _from_command_line(argv: Sequence[str]) -> dict[str, _Given]:
    parsed = vars(_parser().parse_args(argv))
    return {name: _Given(value, f"--{name.replace('_', '-')}") for name, value in parsed.items()}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="warmshelfd",
        description="Keeps model weights and LoRA adapters in host memory and hands them to inference workers.",
        epilog="Every option but --config, --purge, --version and --help, and every limit, is also a key of the file "
        "and an environment variable WARMSHELF_*. WARMSHELF_CONFIG names the file.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"warmshelfd {__version__}")
    parser.add_argument("--config", metavar="FILE", help="TOML file with options and limits")
    for name, metavar in _COMMAND_LINE.items():
        form: dict[str, Any] = {"metavar": metavar}
        form |= {"action": "extend", "nargs": "+"} if name in _LISTS else {}
        form = {"action": "store_true"} if name in _FLAGS else form
        text = Settings.model_fields[name].description or ""
        parser.add_argument(f"--{name.replace('_', '-')}", help=text.replace("%", "%%"), **form)
    parser.add_argument("--purge", action="store_true", help="empty the arena and exit")
    return parser


_COMMAND_LINE = {
    "listen": "ADDRESS",
    "insecure": "",
    "listen_cert_file": "FILE",
    "listen_key_file": "FILE",
    "listen_client_ca_file": "FILE",
    "anonymous_roles": "ROLE",
    "http": "HOST:PORT",
    "log_format": "FORMAT",
    "arena": "DIR",
    "budget": "SIZE",
    "adapter_floor": "SHARE",
    "pin": "POLICY",
    "registry": "URI",
    "node_name": "NAME",
    "node_zone": "ZONE",
    "advertise": "IP[:PORT]",
    "neighbours": "NETWORK",
    "spool": "PLACE",
    "declare": "FILE",
    "allow_source": "PREFIX",
    "preload": "ID",
}

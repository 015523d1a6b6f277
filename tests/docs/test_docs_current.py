"""The documents say what the code says: parts made from it are current, and what they name exists.

Run as a program, it writes the generated parts anew:

    .venv/bin/python tests/docs/test_docs_current.py
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from warmshelf import errors, segment
from warmshelf.v1 import capabilities_pb2, catalog_pb2, lease_pb2, push_pb2, transfer_pb2
from warmshelfd import config, failpoints
from warmshelfd.domain.roles import CALLS, Role, may_call
from warmshelfd.domain.state import GONE, TABLE, mermaid
from warmshelfd.metric_table import SPECS
from warmshelfd.servicers.capabilities import CapabilitiesServicer
from warmshelfd.servicers.catalog import CatalogServicer
from warmshelfd.servicers.lease import LeaseServicer
from warmshelfd.servicers.push import PushServicer
from warmshelfd.servicers.transfer import TransferServicer

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))

from kit import doc_parts, evidence_text, fault_rows  # noqa: E402 - also found when this is run as a program

TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CODE = sorted(
    path
    for folder in ("client", "service", "protos", "tests", "benchmarks", "evidence", "examples", "scripts", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)

FOREIGN = {
    "CAP_IPC_LOCK": "the kernel's",
    "CAP_SYS_ADMIN": "the kernel's",
    "F_ADD_SEALS": "the kernel's",
    "F_SEAL_SHRINK": "the kernel's",
    "MADV_REMOVE": "the kernel's",
    "PUNCH_HOLE": "the kernel's",
    "SGLANG_PLUGINS": "SGLang's",
    "VLLM_PLUGINS": "vLLM's",
    "OTEL_TRACES_SAMPLER": "OpenTelemetry's",
}
"""Names in capitals that the documents may use though no code does."""


def _read(file: str) -> str:
    return (ROOT / file).read_text()


# --- parts made from the code -------------------------------------------------


def layers() -> str:
    """Return the import layers as import-linter holds them."""
    config = tomllib.loads(_read("pyproject.toml"))
    contracts = [c for c in config["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    lines = []
    for contract in contracts:
        lines += [contract["containers"][0], *("    " + re.sub("[()]", "", layer) for layer in contract["layers"]), ""]
    return "\n".join(["```", *lines[:-1], "```"])


def life() -> str:
    """Return the table of an artifact's life."""
    lines = ["| state | event: next state |", "|---|---|"]
    for state, row in TABLE.items():
        steps = [f"`{event.value}`: {'gone' if after is GONE else f'`{after.name}`'}" for event, after in row.items()]
        lines.append(f"| `{state.name}` | {'; '.join(steps)} |")
    return "\n".join(lines)


def drawing() -> str:
    """Return the same as a drawing."""
    return f"```mermaid\n{mermaid()}```"


def error_table() -> str:
    """Return every error there is, grouped by whose fault it is."""
    lines = ["| reason | code | retry | fault | means |", "|---|---|---|---|---|"]
    for fault in errors.Fault:
        for reason, cls in errors.TABLE.items():
            if cls.fault is fault:
                retry = "yes" if cls.retryable else "no"
                means = (cls.__doc__ or "").strip().splitlines()[0]
                lines.append(f"| `{reason}` | `{cls.code.value}` | {retry} | {fault.value} | {means} |")
    return "\n".join(lines)


def limits() -> str:
    """Return every limit that is a setting, but those of formats, which have a page of their own."""
    lines = ["| limit | default | why |", "|---|---:|---|"]
    for name, field in config.Settings.model_fields.items():
        if doc_parts.is_limit(name) and not name.startswith("format_"):
            lines.append(
                f"| `{name}` | {_amount(name, field.default)} | {' '.join((field.description or '').split())} |"
            )
    return "\n".join(lines)


def _amount(name: str, value: float | None) -> str:
    if value is None:
        return "see there"
    if name.endswith("_seconds"):
        return f"{value:g} s"
    if "bytes" in name:
        value = int(value)
        return next(
            f"{value >> shift} {unit}" for shift, unit in ((20, "MiB"), (10, "KiB")) if not value % (1 << shift)
        )
    return f"{value}"


def call_table() -> str:
    """Return which roles each call takes."""
    lines = ["| call | " + " | ".join(role.value for role in Role) + " |", "|---|" + ":-:|" * len(Role)]
    for call in CALLS:
        service, _, method = call.rpartition("/")
        opens = ("yes" if may_call(call, [role]) else "" for role in Role)
        lines.append(f"| `{service.rpartition('.')[2]}`: `{method}` | {' | '.join(opens)} |")
    return "\n".join(lines)


def metric_table() -> str:
    """Return every metric there is."""
    lines = ["| metric | type | labels | means |", "|---|---|---|---|"]
    for spec in SPECS:
        labels = [f"`{name}`" + (f": {', '.join(values)}" if values else "") for name, values in spec.labels.items()]
        lines.append(f"| `{spec.name}` | {spec.type.__name__.lower()} | {'; '.join(labels)} | {spec.text} |")
    return "\n".join(lines)


GENERATED: Mapping[tuple[str, str], Callable[[], str]] = {
    ("docs/architecture.md", "layers"): layers,
    ("docs/architecture.md", "life"): life,
    ("docs/architecture.md", "drawing"): drawing,
    ("docs/wire.md", "errors"): error_table,
    ("docs/wire.md", "limits"): limits,
    ("docs/metrics.md", "metrics"): metric_table,
    ("docs/evidence.md", "runs"): evidence_text.runs,
    ("docs/evidence.md", "kills"): evidence_text.kills,
    ("docs/evidence.md", "zoo"): evidence_text.zoo,
    ("docs/evidence.md", "soak"): evidence_text.soaking,
    ("docs/evidence.md", "fuzz"): evidence_text.fuzzing,
    ("docs/evidence.md", "histories"): evidence_text.histories,
    ("docs/concepts.md", "life"): life,
    ("docs/concepts.md", "calls"): doc_parts.calls,
    ("docs/config.md", "settings"): doc_parts.settings,
    ("docs/access.md", "calls"): call_table,
    **{("docs/faults.md", f"faults-{one}"): partial(fault_rows.table, one) for one in fault_rows.SECTIONS},
}


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- begin: {name} -->\n)(.*?)(<!-- end: {name} -->\n)", re.DOTALL)


@pytest.mark.parametrize(("file", "name"), list(GENERATED))
def test_a_part_made_from_the_code_is_what_the_code_makes_of_it(file: str, name: str) -> None:
    found = _block(name).search(_read(file))
    assert found is not None, f"{file} has no part {name}"
    assert found[2].strip() == GENERATED[file, name]().strip(), f"run: python {Path(__file__).relative_to(ROOT)}"


def test_every_marked_part_is_one_that_is_made() -> None:
    marked = {
        (str(path.relative_to(ROOT)), name)
        for path in TEXTS
        for name in re.findall("<!-- begin: (.*?) -->", path.read_text())
    }
    assert marked == set(GENERATED)


# --- tables written by hand ---------------------------------------------------


def test_the_table_of_kills_has_every_failpoint_once() -> None:
    table = _read("docs/memory.md").partition("| killed at |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([a-z.]+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(failpoints.NAMES)


def test_the_header_of_a_segment_lies_as_its_table_says() -> None:
    header = segment.SegmentHeader(
        "0123456789abcdef" * 2,
        size_bytes=10 << 20,
        data=segment.Section(4096, 3 << 20),
        layout=segment.Section(4 << 20, 101, 0x11111111),
        blocks=segment.Section(5 << 20, 16, 0x22222222),
        manifest=segment.Section(6 << 20, 103, 0x33333333),
    )
    page = segment.pack_header(header)
    values: dict[str, int | bytes] = {
        "magic": b"WARMSHLF",
        "format version": 1,
        "header bytes": 4096,
        "segment ID": header.segment_id.encode(),
        "size of the file": header.size_bytes,
        "CRC32C of bytes 0 to 152": int.from_bytes(page[152:156], "little"),
        "data: CRC": 0,
    }
    for name in ("data", "layout", "blocks", "manifest"):
        section: segment.Section = getattr(header, name)
        values |= {f"{name}: offset": section.offset, f"{name}: size": section.size}
        values |= {f"{name}: CRC32C": section.crc} if section.crc else {}
    text = _read("docs/memory.md").partition("<!-- header: checked by tests/docs -->")[2]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([^,|]+?)(?:,[^|]*)? \|$", text, re.MULTILINE)
    written = {name: page[int(offset) : int(offset) + int(size)] for offset, size, name in rows}
    assert written == {
        name: value if isinstance(value, bytes) else value.to_bytes(len(written.get(name, b"")), "little")
        for name, value in values.items()
    }
    covered = sum(int(size) for _, size, _ in rows) + 4 * len(("data", "layout", "blocks", "manifest"))
    assert covered == len(page.rstrip(b"\0"))


def test_the_table_of_services_says_which_calls_there_are() -> None:
    servicers = {
        catalog_pb2.DESCRIPTOR.services_by_name["CatalogService"]: CatalogServicer,
        lease_pb2.DESCRIPTOR.services_by_name["LeaseService"]: LeaseServicer,
        push_pb2.DESCRIPTOR.services_by_name["PushService"]: PushServicer,
        transfer_pb2.DESCRIPTOR.services_by_name["TransferService"]: TransferServicer,
        capabilities_pb2.DESCRIPTOR.services_by_name["CapabilitiesService"]: CapabilitiesServicer,
    }
    expected = set()
    for service, servicer in servicers.items():
        for method in service.methods:
            snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", method.name).lower()
            there = {method.name, snake} & vars(servicer).keys()
            expected.add((service.name, method.name, "yes" if there else "not yet"))
    rows = re.findall(r"^\| `(\w+Service)` \| (.*) \| (yes|not yet) \|$", _read("docs/wire.md"), re.MULTILINE)
    written = {(name, call, offered) for name, calls, offered in rows for call in re.findall(r"`(\w+)`", calls)}
    assert written == expected


# --- names --------------------------------------------------------------------


def _quoted() -> Iterator[tuple[str, str]]:
    """Return every name that stands in backticks in running text, and where."""
    for path in TEXTS:
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for token in re.findall(r"`([^`\n]+)`", text):
            yield str(path.relative_to(ROOT)), token


def _words() -> frozenset[str]:
    ours = [path for path in CODE if path.parts[len(ROOT.parts)] in {"client", "service", "protos"}]
    return frozenset(word for path in ours for word in re.findall(r"\w+", path.read_text(errors="replace")))


def test_every_name_of_a_reason_limit_or_constant_exists() -> None:
    known = _words() | errors.TABLE.keys() | FOREIGN.keys()
    shape = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[a-z]+(?:_[a-z]+)*_(?:max|seconds|bytes|count)")
    assert [at for at in _quoted() if shape.fullmatch(at[1]) and at[1] not in known] == []


def test_every_failpoint_that_is_named_exists() -> None:
    areas = "|".join(sorted({name.partition(".")[0] for name in failpoints.NAMES}))
    shape = re.compile(rf"(?:{areas})\.(?!py$)[a-z]+")
    assert [at for at in _quoted() if shape.fullmatch(at[1]) and at[1] not in failpoints.NAMES] == []


def test_every_member_of_a_class_or_message_that_is_named_exists() -> None:
    text = "\n".join(
        path.read_text() for path in CODE if path.suffix in {".py", ".proto"} and "tests" not in path.parts
    )
    shape = re.compile(r"([A-Z]\w*[a-z]\w*)\.(\w+)")
    missing = []
    for file, token in _quoted():
        found = shape.fullmatch(token)
        if found and not re.search(
            rf"^(?:class|message) {found[1]}\b.*?\b{found[2]}\b", text, re.DOTALL | re.MULTILINE
        ):
            missing.append((file, token))
    assert missing == []


def test_every_file_that_is_named_exists() -> None:
    there = {f"/{path.relative_to(ROOT)}" for path in [*CODE, *TEXTS, *ROOT.glob("*")]}
    folders = {f"/{path.parent.relative_to(ROOT)}/" for path in CODE} | {"/docs/decisions/"}
    shape = re.compile(r"[\w./-]+\.(?:py|proto|md|toml)|(?!/)(?:[\w-]+/)+")
    missing = [
        (file, token)
        for file, token in _quoted()
        if shape.fullmatch(token) and not any(name.endswith(f"/{token}") for name in there | folders)
    ]
    assert missing == []


def test_every_function_of_a_linked_file_that_is_named_is_in_it() -> None:
    named = re.findall(r"`(?:\w+\.)?(\w+)` in\s+\[[^\]]+\]\(([^)]+)\)", _read("README.md"))
    assert len(named) == 3
    assert [(name, file) for name, file in named if f"def {name}(" not in _read(file)] == []


def test_every_link_leads_somewhere() -> None:
    dead = []
    for path in TEXTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            file, _, anchor = target.partition("#")
            to = path.parent / file if file else path
            if "://" not in target and not (to.exists() and (not anchor or anchor in _anchors(to))):
                dead.append((str(path.relative_to(ROOT)), target))
    assert dead == []


def _anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}


# --- commands -----------------------------------------------------------------


def _commands(program: str) -> list[tuple[str, list[str]]]:
    """Return every line of a console block, and every text in backticks, that runs the program."""
    found = [(file, token) for file, token in _quoted() if token.startswith(f"{program} ")]
    for path in TEXTS:
        lines = re.findall(r"^\$ (.*)$", path.read_text(), re.MULTILINE)
        found += [(str(path.relative_to(ROOT)), line) for line in lines]
    split = [(file, shlex.split(line, comments=True)) for file, line in found]
    return [(file, words[1:]) for file, words in split if words and words[0] == program]


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _read("Makefile"), re.MULTILINE))
    named = [(file, word) for file, words in _commands("make") for word in words if "=" not in word]
    assert ("README.md", "demo") in named
    assert [at for at in named if at[1] not in targets] == []


def test_every_command_and_option_of_warmshelf_that_is_named_exists() -> None:
    typer = pytest.importorskip("typer")
    from warmshelf import _cli_commands, _cli_doctor, _cli_files  # noqa: F401, PLC0415 - need the extra
    from warmshelf._cli_app import app  # noqa: PLC0415

    commands = typer.main.get_command(app).commands
    options = {
        name: {
            opt for one in (command, *getattr(command, "commands", {}).values()) for p in one.params for opt in p.opts
        }
        for name, command in commands.items()
    }
    named = _commands("warmshelf")
    assert {words[0] for file, words in named if file == "README.md"} >= commands.keys()
    for file, (name, *words) in named:
        assert name in commands, f"{file}: warmshelf {name}"
        unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - options[name]
        assert not unknown, f"{file}: warmshelf {name} {unknown}"


def test_the_table_of_options_has_those_of_the_daemon() -> None:
    table = _read("README.md").partition("| option | default |")[2].partition("\n\n")[0]
    written = re.findall(r"^\| `(--[a-z-]+)", table, re.MULTILINE)
    offered = {*config._COMMAND_LINE, "config", "purge"}
    assert sorted(written) == sorted(f"--{name.replace('_', '-')}" for name in offered)


def test_every_option_of_warmshelfd_that_is_named_can_be_parsed() -> None:
    named = _commands("warmshelfd")
    assert named
    for _, words in named:
        config.parse(words, {})


def _write() -> None:
    for (file, name), make in GENERATED.items():
        path = ROOT / file
        part = make().strip()
        path.write_text(_block(name).sub(lambda found, part=part: f"{found[1]}{part}\n{found[3]}", path.read_text()))


if __name__ == "__main__":
    _write()

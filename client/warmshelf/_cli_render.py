"""How the command prints: tables for people, the protocol's JSON for programs.

Standard output carries the answer and nothing else; errors and the progress bar go to
standard error. Knows no daemon and no argument.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from typing import TextIO

from google.protobuf.json_format import MessageToDict, MessageToJson
from google.protobuf.message import Message
from rich import progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warmshelf._sizes import show_size
from warmshelf._wire import change_to_proto
from warmshelf.errors import Internal, WarmshelfError
from warmshelf.types import (
    AdapterInspection,
    Alias,
    Artifact,
    Capacity,
    Change,
    ChangeKind,
    Inspection,
    LeaseInfo,
    Progress,
    Registered,
)

_PIPE_WIDTH = 100_000
"""Columns where nobody looks: a table in a pipe or file is never cut or wrapped."""

_Row = tuple[str, str | tuple[str, ...]]
"""A name and its value; a tuple has several lines."""


class Output(Enum):
    """In which form answers are printed."""

    TABLE = "table"
    JSON = "json"


def message(answer: Message) -> None:
    """Print a message as JSON, with the protocol's field names."""
    print(MessageToJson(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))


def error(failure: WarmshelfError) -> None:
    """Print an error: reason, text and numbers."""
    numbers = ", ".join(f"{key}={value}" for key, value in failure.details.items() if not isinstance(value, str))
    print(_shown(str(failure)) + (f" ({numbers})" if numbers else ""), file=sys.stderr)


def outcome(one: Registered) -> None:
    """Print why one registration of many was refused."""
    print(_shown(f"{one.artifact_id}: {one.error}"), file=sys.stderr)


def artifacts(found: Iterable[Artifact]) -> None:
    """Print one line for each artifact; how far other nodes know it is a column where the registry is shared."""
    shown = list(found)
    is_shared = any(artifact.sync is not None for artifact in shown)
    rows = [
        (
            artifact.artifact_id,
            artifact.kind.value,
            artifact.state.value,
            size(artifact.size_bytes) if artifact.size_bytes else "-",
            str(artifact.generation),
            *([artifact.sync.state.value if artifact.sync else "-"] if is_shared else []),
            artifact.spec.base_id or "-",
            artifact.spec.source.uri,
        )
        for artifact in shown
    ]
    table(("ID", "KIND", "STATE", "SIZE", "GENERATION", *(["SYNC"] if is_shared else []), "BASE", "SOURCE"), rows)


def leases(found: Iterable[LeaseInfo]) -> None:
    """Print one line for each lease."""
    rows = [(lease.artifact_id, str(lease.generation), lease.holder, _time(lease.acquire_time)) for lease in found]
    table(("ID", "GENERATION", "HOLDER", "SINCE"), rows)


def capacity(found: Capacity, like_id: str) -> None:
    """Print what the arena holds, and how many more artifacts fit if one was asked about."""
    rows = [
        (name.removesuffix("_bytes"), f"{size(value)} ({value} bytes)")
        for name, value in asdict(found).items()
        if name.endswith("_bytes")
    ]
    if like_id:
        rows.append((f"more like {like_id}", f"{found.fit_free_count}, and {found.fit_evicting_count} with evictions"))
    _print_facts(rows)


def changes(found: Iterable[Change], output: Output) -> None:
    """Print one line for each change as it comes."""
    line = _change_json if output is Output.JSON else _change_line
    for change in found:
        print(line(change), flush=True)


def whole_artifact(artifact: Artifact) -> None:
    """Print all that is known of one artifact."""
    _print_facts(_facts(artifact))


@contextmanager
def bar(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """On a terminal, show a bar; give a function that tells it of what, and how many bytes of how many, are done."""
    console = _console(sys.stderr)
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(title, total=None)

        def tell(what: str, done_bytes: int, total_bytes: int) -> None:
            shown.update(task, description=f"{title} {what}", completed=done_bytes, total=total_bytes or None)

        yield tell


def watch_load(artifact_id: str, steps: Iterator[Progress]) -> Artifact:
    """Return the artifact that a load ends with; on a terminal, show a bar until then."""
    last: Progress | None = None
    with bar(artifact_id) as tell:
        for last in steps:
            tell(last.phase.value, last.done_bytes, last.total_bytes)
    if last is None or last.artifact is None:
        raise Internal(f"the load of {artifact_id} ended without a result")
    return last.artifact


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows below the names of their columns."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*map(_text, row))
    _print(shown)


def size(size_bytes: int) -> str:
    """Return a size for people, such as ``1.5 GiB``."""
    return show_size(size_bytes)


def aliases(found: Iterable[Alias]) -> None:
    """Print one line for each alias."""
    rows = [(alias.name, alias.artifact_id, _time(alias.history[-1].move_time)) for alias in found]
    table(("ALIAS", "ID", "SINCE"), rows)


def alias_history(alias: Alias) -> None:
    """Print what an alias meant, the latest first."""
    table(("ID", "SINCE"), [(move.artifact_id, _time(move.move_time)) for move in reversed(alias.history)])


def _facts(artifact: Artifact) -> Iterator[_Row]:
    yield "ID", artifact.artifact_id
    yield "kind", artifact.kind.value
    yield "state", artifact.state.value
    yield "generation", str(artifact.generation)
    yield "size", f"{size(artifact.size_bytes)} ({artifact.size_bytes} bytes)" if artifact.size_bytes else "not known"
    yield "digest", artifact.digest or "not known"
    yield "pinned", "yes, page-locked" if artifact.pinned else "no"
    yield "kept resident", _yes(artifact.keep_resident)
    yield "followed", _yes(artifact.follow)
    if artifact.sync is not None:
        yield "sync", artifact.sync.state.value + (f": {artifact.sync.reason}" if artifact.sync.reason else "")
    yield "registered", _time(artifact.register_time)
    yield "last used", _time(artifact.last_use_time)
    yield from _source_facts(artifact)
    if artifact.failure is not None:
        yield "failure", f"{artifact.failure.reason}: {artifact.failure.message}"
        yield from ((f"  {key}", value) for key, value in sorted(artifact.failure.details.items()))
    if artifact.inspection is not None:
        yield from _inspection_facts(artifact.inspection)
    else:
        yield "inspection", "not inspected yet; the first load will"


def _source_facts(artifact: Artifact) -> Iterator[_Row]:
    source = artifact.spec.source
    yield "source", source.uri
    yield "revision", source.revision or "-"
    yield "expected digest", source.expected_digest or "-"
    yield "base", artifact.spec.base_id or "-"


def _inspection_facts(inspection: Inspection) -> Iterator[_Row]:
    yield "format", inspection.format_name
    yield "files", inspection.file_names
    yield "tensors", f"{inspection.tensor_count}, {size(inspection.tensor_bytes)} ({inspection.tensor_bytes} bytes)"
    if inspection.adapter is not None:
        yield from _adapter_facts(inspection.adapter)


def _adapter_facts(adapter: AdapterInspection) -> Iterator[_Row]:
    yield "adapter number", str(adapter.adapter_number)
    yield "largest rank", str(adapter.rank_max)
    yield "features", ", ".join(adapter.features) or "plain LoRA"
    yield "against base", adapter.base_check.value
    for verdict in adapter.engine_verdicts:
        why = (f"  {reason}" for reason in verdict.reasons)
        yield f"{verdict.engine} {verdict.engine_version}", (verdict.outcome.value, *why)
    yield "modules", ", ".join(adapter.module_names)
    if adapter.unmatched_module_names:
        yield "not in base", ", ".join(adapter.unmatched_module_names)
    yield "config", tuple(adapter.config_json.decode("utf-8", "replace").split("\n"))


def _change_json(change: Change) -> str:
    row = MessageToDict(
        change_to_proto(change), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    if change.kind is ChangeKind.STARTED_OVER:
        row["started_over"] = {}
    return json.dumps(row)


def _change_line(change: Change) -> str:
    """Return a line of fixed columns: a table would have to wait for its last row."""
    artifact = change.artifact
    if change.alias is not None:
        return _shown(f"{change.sequence:<16}  {'alias':<12}  {change.alias.name} -> {change.artifact_id}")
    if change.kind is ChangeKind.ALIAS_REMOVED:
        return _shown(f"{change.sequence:<16}  {'alias':<12}  {change.artifact_id} -> nothing")
    state = artifact.state.value if artifact else ""
    generation = str(artifact.generation) if artifact else ""
    line = f"{change.sequence:<16}  {change.kind.value:<12}  {state:<10}  {generation:<10}  {change.artifact_id}"
    return _shown(line.rstrip())


def _print_facts(facts: Iterable[_Row]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        lines = (value,) if isinstance(value, str) else value
        table.add_row(_text(name), _text(*lines))
    _print(table)


def _print(table: Table) -> None:
    """Print a table without the blanks that fill its last column: one long value would put them behind every other."""
    console = _console(sys.stdout)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().removesuffix("\n").split("\n"):
        print(line.rstrip())


def _console(stream: TextIO) -> Console:
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def _text(*lines: str) -> Text:
    return Text("\n".join(map(_shown, lines)))


def _shown(value: str) -> str:
    """Return the text as one line, with what a terminal would obey made visible: names come from strangers."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _time(moment: datetime | None) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="seconds") if moment is not None else "-"

"""The subcommands: each reads its arguments, makes one call and prints the answer."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Optional

import typer

from warmshelf import _cli_bench, _cli_push, _cli_tensorize
from warmshelf import _cli_render as render
from warmshelf._cli_alias import alias_app
from warmshelf._cli_push_store import push_to_store
from warmshelf._wire import artifact_to_proto, capacity_to_proto, lease_to_proto
from warmshelf.client import Shelf, connect
from warmshelf.errors import DaemonUnreachable, InvalidRequest, WarmshelfError
from warmshelf.tensorize import LIBRARIES
from warmshelf.types import Artifact
from warmshelf.v1 import catalog_pb2, lease_pb2

REFUSED_STATUS = 1
USAGE_STATUS = 2
UNREACHABLE_STATUS = 3

app = typer.Typer(
    help="Ask a warmshelf daemon for what it keeps.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Address = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option(metavar="ADDRESS", help="unix:///PATH or HOST:PORT; WARMSHELF_ADDRESS by default."),
]
Output = Annotated[
    Optional[render.Output],  # noqa: UP045 - typer reads it at run time
    typer.Option(help="For people, or for programs with the names of the protocol."),
]
KeyFile = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option(metavar="K", help="File with the key: 32 bytes, raw or in hexadecimal, or a passphrase."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The artifact's ID.")]


@dataclass(frozen=True)
class _Settings:
    address: str | None = None
    output: render.Output | None = None


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"warmshelf {importlib.metadata.version('warmshelf')}")
        except importlib.metadata.PackageNotFoundError:
            typer.echo("warmshelf, not installed")
        raise typer.Exit


@app.callback()
def _settings_of_all(
    context: typer.Context,
    address: Address = None,
    output: Output = None,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    context.obj = _Settings(address, output)


def _output(context: typer.Context, output: render.Output | None) -> render.Output:
    return output or context.obj.output or render.Output.TABLE


@contextlib.contextmanager
def _daemon(context: typer.Context, address: str | None) -> Iterator[Shelf]:
    try:
        shelf = connect(address or context.obj.address)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message, param_hint="--address") from error
    try:
        with shelf:
            yield shelf
    except WarmshelfError as error:
        render.error(error)
        raise typer.Exit(UNREACHABLE_STATUS if isinstance(error, DaemonUnreachable) else REFUSED_STATUS) from None


@contextlib.contextmanager
def _local() -> Iterator[None]:
    """Report what goes wrong with work that is done here."""
    try:
        yield
    except WarmshelfError as error:
        render.error(error)
        raise typer.Exit(REFUSED_STATUS) from None
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in LIBRARIES:
            raise
        typer.echo(f"warmshelf: this command needs {library}: pip install 'warmshelf[tensorizer]'", err=True)
        raise typer.Exit(USAGE_STATUS) from None


app.add_typer(alias_app(_daemon, lambda context: _output(context, None) is render.Output.JSON), name="alias")


@app.command()
def register(
    context: typer.Context,
    artifact_id: Id,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A URI, or a path on the daemon's host.")],
    base: Annotated[str, typer.Option(metavar="BASE_ID", help="The base of an adapter.")] = "",
    digest: Annotated[str, typer.Option(help="Refuse content with another digest.")] = "",
    revision: Annotated[str, typer.Option(help="The source's own version.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace what the ID means now.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Accept other bytes at the source later.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Never evict it to make room.")] = False,
    defer: Annotated[bool, typer.Option("--defer", help="Look at the source at the first load only.")] = False,
    address: Address = None,
    output: Output = None,
) -> None:
    """Make an artifact known; nothing is loaded."""
    if replace and follow:
        raise typer.BadParameter("--replace and --follow exclude each other")
    with _daemon(context, address) as shelf:
        artifact = shelf.register(
            artifact_id,
            source,
            base=base,
            digest=digest,
            revision=revision,
            replace=replace,
            follow=follow,
            keep=keep,
            defer=defer,
        )
        _print_artifact(artifact, _output(context, output))


@app.command("register-many")
def register_many(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines with id, source and more; - for stdin.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace what the IDs mean now.")] = False,
    defer: Annotated[bool, typer.Option("--defer", help="Look at each source at its first load only.")] = False,
    address: Address = None,
    output: Output = None,
) -> None:
    """Make many artifacts known: a line has id, source, and base, digest, revision, follow, keep."""
    try:
        found = _cli_push.read_lines(file)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from None
    with _daemon(context, address) as shelf:
        outcomes = shelf.register_many(found, replace=replace, defer=defer)
    refused = _cli_push.show_outcomes(outcomes, _output(context, output))
    raise typer.Exit(REFUSED_STATUS if refused else 0)


@app.command()
def push(
    context: typer.Context,
    artifact_id: Id,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A directory of this host, or a file of weights.")],
    store: Annotated[
        str, typer.Option(metavar="URL", help="Write to a store, redis://HOST:PORT/DB, instead of to the daemon.")
    ] = "",
    base: Annotated[str, typer.Option(metavar="BASE_ID", help="The base of an adapter.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace what the ID means now.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Never evict it to make room.")] = False,
    address: Address = None,
    output: Output = None,
) -> None:
    """Send local files to the daemon, which keeps them, or to a store; afterwards the ID is enough."""
    with _daemon(context, address) as shelf:
        send: Callable[..., Artifact] = partial(push_to_store, store_url=store) if store else _cli_push.push
        artifact = send(shelf, artifact_id, directory, base=base, replace=replace, keep=keep)
        _print_artifact(artifact, _output(context, output))


@app.command()
def load(
    context: typer.Context,
    artifact_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The artifacts' IDs.")],
    detach: Annotated[bool, typer.Option("--detach", help="Begin the loads and do not wait for them.")] = False,
    address: Address = None,
    output: Output = None,
) -> None:
    """Make artifacts resident, one after the other."""
    loaded: list[Artifact] = []
    status = 0
    with _daemon(context, address) as shelf:
        for artifact_id in artifact_ids:
            try:
                loaded.append(render.watch_load(artifact_id, shelf.load(artifact_id, detach=detach)))
            except DaemonUnreachable:
                raise
            except WarmshelfError as error:
                render.error(error)
                status = REFUSED_STATUS
        if loaded or _output(context, output) is render.Output.JSON:  # no table head without a table
            _print_artifacts(loaded, _output(context, output))
    raise typer.Exit(status)


@app.command("list")
def list_artifacts(
    context: typer.Context,
    base: Annotated[str, typer.Option(metavar="BASE_ID", help="Only this base's adapters.")] = "",
    address: Address = None,
    output: Output = None,
) -> None:
    """List the artifacts known."""
    with _daemon(context, address) as shelf:
        _print_artifacts(shelf.list(base=base), _output(context, output))


@app.command()
def show(context: typer.Context, artifact_id: Id, address: Address = None, output: Output = None) -> None:
    """Show all that is known of an artifact."""
    with _daemon(context, address) as shelf:
        artifact = shelf.get(artifact_id)
        if _output(context, output) is render.Output.JSON:
            render.message(artifact_to_proto(artifact))
        else:
            render.whole_artifact(artifact)


@app.command()
def watch(
    context: typer.Context,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Go on after this number; 0: all first.")] = 0,
    address: Address = None,
    output: Output = None,
) -> None:
    """Print changes as they happen, until it is interrupted."""
    with _daemon(context, address) as shelf, contextlib.suppress(KeyboardInterrupt), shelf.watch(after) as changes:
        render.changes(changes, _output(context, output))


@app.command()
def leases(
    context: typer.Context,
    artifact_id: Annotated[str, typer.Argument(metavar="[ID]", help="Only those on this artifact.")] = "",
    address: Address = None,
    output: Output = None,
) -> None:
    """List the live leases."""
    with _daemon(context, address) as shelf:
        found = shelf.leases(artifact_id)
        if _output(context, output) is render.Output.JSON:
            render.message(lease_pb2.ListLeasesResponse(leases=map(lease_to_proto, found)))
        else:
            render.leases(found)


@app.command()
def capacity(
    context: typer.Context,
    like: Annotated[str, typer.Option(metavar="ID", help="Say how many more of this one's size fit.")] = "",
    address: Address = None,
    output: Output = None,
) -> None:
    """Show what the arena holds, and how much more fits."""
    with _daemon(context, address) as shelf:
        found = shelf.capacity(like)
        if _output(context, output) is render.Output.JSON:
            render.message(capacity_to_proto(found))
        else:
            render.capacity(found, like)


@app.command()
def verify(context: typer.Context, artifact_id: Id, address: Address = None, output: Output = None) -> None:
    """Check every resident byte of an artifact."""
    with _daemon(context, address) as shelf:
        checked = shelf.verify(artifact_id)
        if _output(context, output) is render.Output.JSON:
            render.message(catalog_pb2.VerifyArtifactResponse(checked_bytes=checked))
        else:
            typer.echo(f"verified {artifact_id}: {checked} bytes")


@app.command()
def export(
    context: typer.Context,
    artifact_id: Id,
    out: Annotated[str, typer.Option(metavar="DIR", help="Must not exist, or be empty.")],
    address: Address = None,
    output: Output = None,
) -> None:
    """Write an artifact as a directory of safetensors, bit for bit."""
    with _daemon(context, address) as shelf:
        artifact = shelf.export(artifact_id, out)
        if _output(context, output) is render.Output.JSON:
            render.message(artifact_to_proto(artifact))
        else:
            typer.echo(f"exported {artifact_id}, generation {artifact.generation}, to {out}")


@app.command()
def evict(
    context: typer.Context,
    artifact_id: Id,
    drain: Annotated[bool, typer.Option("--drain", help="If leased: grant no more, and wait for the last.")] = False,
    address: Address = None,
    output: Output = None,
) -> None:
    """Give an artifact's memory back; it stays registered."""
    with _daemon(context, address) as shelf:
        _print_artifact(shelf.evict(artifact_id, drain=drain), _output(context, output))


@app.command()
def remove(context: typer.Context, artifact_id: Id, address: Address = None, output: Output = None) -> None:
    """Forget an artifact; who holds a lease keeps the bytes."""
    with _daemon(context, address) as shelf:
        shelf.remove(artifact_id)
        if _output(context, output) is render.Output.JSON:
            render.message(catalog_pb2.RemoveArtifactResponse())
        else:
            typer.echo(f"removed {artifact_id}")


@app.command()
def bench(
    context: typer.Context,
    artifact_ids: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads it at run time
        typer.Argument(metavar="[ID...]", help="Artifacts to measure; one that is not resident is loaded."),
    ] = None,
    source: Annotated[
        str, typer.Option(metavar="DIR", help="Measure 256 MiB made here, where the daemon may read; then remove it.")
    ] = "",
    reload: Annotated[bool, typer.Option("--reload", help="Measure loads too: evict, and load again.")] = False,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="How often to stream and to load.")] = 5,
    address: Address = None,
    output: Output = None,
) -> None:
    """Measure how fast the daemon serves artifacts to this process."""
    if not artifact_ids and not source:
        raise typer.BadParameter("name an ID, or a --source directory")
    with _daemon(context, address) as shelf:
        found = _cli_bench.run(shelf, artifact_ids or [], source, round_count=rounds, reload=reload)
        _cli_bench.show(found, _output(context, output))


@app.command()
def tensorize(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A directory of safetensors here, or one such file.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Must not exist, or be an empty directory.")],
    key_file: KeyFile = None,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Give the file a name for each of vLLM's ranks.")
    ] = 1,
    output: Output = None,
) -> None:
    """Write a model or an adapter as tensorizer's .tensors; no daemon is asked."""
    with _local():
        found = _cli_tensorize.tensorize(source, out, key_file, tensor_parallel)
        _cli_tensorize.show(found, out, _output(context, output))


@app.command()
def untensorize(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A directory with a .tensors file here, or the file.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Must not exist, or be an empty directory.")],
    key_file: KeyFile = None,
    output: Output = None,
) -> None:
    """Write a .tensors file as a directory of safetensors, bit for bit; no daemon is asked."""
    with _local():
        found = _cli_tensorize.untensorize(source, out, key_file)
        _cli_tensorize.show(found, out, _output(context, output))


def _print_artifact(artifact: Artifact, output: render.Output) -> None:
    if output is render.Output.JSON:
        render.message(artifact_to_proto(artifact))
    else:
        render.artifacts([artifact])


def _print_artifacts(artifacts: list[Artifact], output: render.Output) -> None:
    if output is render.Output.JSON:
        render.message(catalog_pb2.ListArtifactsResponse(artifacts=map(artifact_to_proto, artifacts)))
    else:
        render.artifacts(artifacts)

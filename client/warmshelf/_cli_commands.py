"""The subcommands: each reads its arguments, makes one call and prints the answer."""

from __future__ import annotations

import contextlib
from typing import Annotated, Optional

import typer

from warmshelf import _cli_bench, _cli_where
from warmshelf import _cli_render as render
from warmshelf._cli_alias import alias_app
from warmshelf._cli_app import (
    REFUSED_STATUS,
    Address,
    Id,
    Output,
    app,
    daemon,
    output_of,
    print_artifact,
    print_artifacts,
)
from warmshelf._sizes import parse_size
from warmshelf._wire import artifact_to_proto, capacity_to_proto, lease_to_proto
from warmshelf.errors import DaemonUnreachable, WarmshelfError
from warmshelf.types import Artifact
from warmshelf.v1 import catalog_pb2, lease_pb2


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


app.add_typer(alias_app(daemon, lambda context: output_of(context, None) is render.Output.JSON), name="alias")


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
    with daemon(context, address) as shelf:
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
        print_artifact(artifact, output_of(context, output))


@app.command()
def load(
    context: typer.Context,
    artifact_ids: Annotated[list[str], typer.Argument(metavar="ID", help="The artifacts' IDs.")],
    detach: Annotated[bool, typer.Option("--detach", help="Begin the loads and do not wait for them.")] = False,
    address: Address = None,
    output: Output = None,
) -> None:
    """Make artifacts resident, one after the other."""
    loaded: list[Artifact] = []
    status = 0
    with daemon(context, address) as shelf:
        for artifact_id in artifact_ids:
            try:
                loaded.append(render.watch_load(artifact_id, shelf.load(artifact_id, detach=detach)))
            except DaemonUnreachable:
                raise
            except WarmshelfError as error:
                render.error(error)
                status = REFUSED_STATUS
        if loaded or output_of(context, output) is render.Output.JSON:  # no table head without a table
            print_artifacts(loaded, output_of(context, output))
    raise typer.Exit(status)


@app.command("list")
def list_artifacts(
    context: typer.Context,
    base: Annotated[str, typer.Option(metavar="BASE_ID", help="Only this base's adapters.")] = "",
    address: Address = None,
    output: Output = None,
) -> None:
    """List the artifacts known."""
    with daemon(context, address) as shelf:
        print_artifacts(shelf.list(base=base), output_of(context, output))


@app.command()
def show(context: typer.Context, artifact_id: Id, address: Address = None, output: Output = None) -> None:
    """Show all that is known of an artifact."""
    with daemon(context, address) as shelf:
        artifact = shelf.get(artifact_id)
        if output_of(context, output) is render.Output.JSON:
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
    with daemon(context, address) as shelf, contextlib.suppress(KeyboardInterrupt), shelf.watch(after) as changes:
        render.changes(changes, output_of(context, output))


@app.command()
def where(
    context: typer.Context,
    artifact_id: Annotated[
        str, typer.Argument(metavar="ID", help="Only this artifact, or what this alias means.")
    ] = "",
    address: Address = None,
    output: Output = None,
) -> None:
    """Show on which nodes of the fleet artifacts are resident, and with ID also which load it now."""
    with daemon(context, address) as shelf:
        found = shelf.list_residency(artifact_id)
        if artifact_id and not found.residents and not found.loading:
            shelf.where(artifact_id)  # says so if it is not known at all
        _cli_where.show(found, artifact_id, output_of(context, output))


@app.command()
def leases(
    context: typer.Context,
    artifact_id: Annotated[str, typer.Argument(metavar="ID", help="Only those on this artifact.")] = "",
    address: Address = None,
    output: Output = None,
) -> None:
    """List the live leases."""
    with daemon(context, address) as shelf:
        found = shelf.leases(artifact_id)
        if output_of(context, output) is render.Output.JSON:
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
    with daemon(context, address) as shelf:
        found = shelf.capacity(like)
        if output_of(context, output) is render.Output.JSON:
            render.message(capacity_to_proto(found))
        else:
            render.capacity(found, like)


@app.command()
def budget(
    context: typer.Context,
    size: Annotated[
        Optional[int],  # noqa: UP045 - typer reads it at run time
        typer.Argument(metavar="SIZE", parser=_size, help="The budget from now on, such as 48GiB; none: show it."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait for leases to end that are in the way.")
    ] = 10.0,
    address: Address = None,
    output: Output = None,
) -> None:
    """Show the budget, or change it until the daemon ends."""
    with daemon(context, address) as shelf:
        found = shelf.capacity() if size is None else shelf.set_budget(size, timeout=timeout)
        if output_of(context, output) is render.Output.JSON:
            render.message(capacity_to_proto(found))
        else:
            render.capacity(found, "")


@app.command()
def verify(context: typer.Context, artifact_id: Id, address: Address = None, output: Output = None) -> None:
    """Check every resident byte of an artifact."""
    with daemon(context, address) as shelf:
        checked = shelf.verify(artifact_id)
        if output_of(context, output) is render.Output.JSON:
            render.message(catalog_pb2.VerifyArtifactResponse(checked_bytes=checked))
        else:
            typer.echo(f"verified {artifact_id}: {checked} bytes")


@app.command()
def evict(
    context: typer.Context,
    artifact_id: Id,
    drain: Annotated[bool, typer.Option("--drain", help="If leased: grant no more, and wait for the last.")] = False,
    address: Address = None,
    output: Output = None,
) -> None:
    """Give an artifact's memory back; it stays registered."""
    with daemon(context, address) as shelf:
        print_artifact(shelf.evict(artifact_id, drain=drain), output_of(context, output))


@app.command()
def remove(context: typer.Context, artifact_id: Id, address: Address = None, output: Output = None) -> None:
    """Forget an artifact; who holds a lease keeps the bytes."""
    with daemon(context, address) as shelf:
        shelf.remove(artifact_id)
        if output_of(context, output) is render.Output.JSON:
            render.message(catalog_pb2.RemoveArtifactResponse())
        else:
            typer.echo(f"removed {artifact_id}")


@app.command()
def bench(
    context: typer.Context,
    artifact_ids: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads it at run time
        typer.Argument(metavar="ID", help="Artifacts to measure; one that is not resident is loaded."),
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
    with daemon(context, address) as shelf:
        found = _cli_bench.run(shelf, artifact_ids or [], source, round_count=rounds, reload=reload)
        _cli_bench.show(found, output_of(context, output))

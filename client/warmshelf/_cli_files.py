"""The subcommands that read or write files of this host; each makes one call and prints the outcome."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from warmshelf import _cli_prepare, _cli_push, _cli_tensorize
from warmshelf import _cli_render as render
from warmshelf._cli_app import (
    REFUSED_STATUS,
    Address,
    Id,
    KeyFile,
    Output,
    app,
    daemon,
    local,
    output_of,
    print_artifact,
)
from warmshelf._cli_push_store import push_to_store
from warmshelf._wire import artifact_to_proto
from warmshelf.types import Artifact


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
    with daemon(context, address) as shelf:
        outcomes = shelf.register_many(found, replace=replace, defer=defer)
    refused = _cli_push.show_outcomes(outcomes, output_of(context, output))
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
    with daemon(context, address) as shelf:
        send: Callable[..., Artifact] = partial(push_to_store, store_url=store) if store else _cli_push.push
        artifact = send(shelf, artifact_id, directory, base=base, replace=replace, keep=keep)
        print_artifact(artifact, output_of(context, output))


@app.command()
def export(
    context: typer.Context,
    artifact_id: Id,
    out: Annotated[str, typer.Option(metavar="DIR", help="Must not exist, or be empty.")],
    address: Address = None,
    output: Output = None,
) -> None:
    """Write an artifact as a directory of safetensors, bit for bit."""
    with daemon(context, address) as shelf:
        artifact = shelf.export(artifact_id, out)
        if output_of(context, output) is render.Output.JSON:
            render.message(artifact_to_proto(artifact))
        else:
            typer.echo(f"exported {artifact_id}, generation {artifact.generation}, to {out}")


@app.command("prepare-model")
def prepare_model(
    context: typer.Context,
    artifact_id: Id,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Must be empty, or prepared before.")],
    address: Address = None,
    output: Output = None,
) -> None:
    """Lay out a base's config and tokenizer files, for engines that want a directory; it gets no weights."""
    with daemon(context, address) as shelf:
        marker = _cli_prepare.run(shelf, artifact_id, directory)
        _cli_prepare.show(marker, directory, output_of(context, output))


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
    with local():
        found = _cli_tensorize.tensorize(source, out, key_file, tensor_parallel)
        _cli_tensorize.show(found, out, output_of(context, output))


@app.command()
def untensorize(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A directory with a .tensors file here, or the file.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Must not exist, or be an empty directory.")],
    key_file: KeyFile = None,
    output: Output = None,
) -> None:
    """Write a .tensors file as a directory of safetensors, bit for bit; no daemon is asked."""
    with local():
        found = _cli_tensorize.untensorize(source, out, key_file)
        _cli_tensorize.show(found, out, output_of(context, output))

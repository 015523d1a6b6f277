"""What all subcommands share: the application, options, connecting, exit status, artifacts printed."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from warmshelf import _cli_render as render
from warmshelf._security import Tls
from warmshelf._wire import artifact_to_proto
from warmshelf.client import Shelf, connect
from warmshelf.errors import DaemonUnreachable, InvalidRequest, WarmshelfError
from warmshelf.tensorize import LIBRARIES
from warmshelf.types import Artifact
from warmshelf.v1 import catalog_pb2

REFUSED_STATUS = 1
USAGE_STATUS = 2
UNREACHABLE_STATUS = 3

app = typer.Typer(
    help="Ask a warmshelf daemon for what it keeps.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    tls: Tls | None = None
    token_file: Path | None = None
    tenant: str | None = None


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
    tls_ca: Annotated[str, typer.Option(metavar="FILE", help="Authorities that may vouch for the daemon.")] = "",
    tls_cert: Annotated[str, typer.Option(metavar="FILE", help="This caller's certificate.")] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="Its key.")] = "",
    token_file: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time
        typer.Option(metavar="FILE", help="File with this caller's token. All four as WARMSHELF_... by default."),
    ] = None,
    tenant: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Option(metavar="NAME", help="Tenant to call for, by an operator of none. WARMSHELF_TENANT by default."),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    tls = Tls(tls_ca, tls_cert, tls_key) if tls_ca or tls_cert or tls_key else None
    context.obj = _Settings(address, output, tls, token_file, tenant)


def output_of(context: typer.Context, output: render.Output | None) -> render.Output:
    return output or context.obj.output or render.Output.TABLE


@contextlib.contextmanager
def daemon(context: typer.Context, address: str | None) -> Iterator[Shelf]:
    try:
        given = context.obj
        shelf = connect(address or given.address, tls=given.tls, token=given.token_file, tenant=given.tenant)
    except InvalidRequest as error:
        hint = "--address" if "address" in error.details else None
        raise typer.BadParameter(error.message, param_hint=hint) from error
    try:
        with shelf:
            yield shelf
    except WarmshelfError as error:
        render.error(error)
        raise typer.Exit(status_of(error)) from None


@contextlib.contextmanager
def local() -> Iterator[None]:
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


def status_of(error: WarmshelfError) -> int:
    return UNREACHABLE_STATUS if isinstance(error, DaemonUnreachable) else REFUSED_STATUS


def print_artifact(artifact: Artifact, output: render.Output) -> None:
    if output is render.Output.JSON:
        render.message(artifact_to_proto(artifact))
    else:
        render.artifacts([artifact])


def print_artifacts(artifacts: list[Artifact], output: render.Output) -> None:
    if output is render.Output.JSON:
        render.message(catalog_pb2.ListArtifactsResponse(artifacts=map(artifact_to_proto, artifacts)))
    else:
        render.artifacts(artifacts)

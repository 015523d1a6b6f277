"""``warmshelf alias``: set, list, history, rollback, remove."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from warmshelf import _cli_render as render
from warmshelf._fleet import alias_to_proto
from warmshelf.client import Shelf
from warmshelf.errors import ArtifactNotFound
from warmshelf.types import Alias
from warmshelf.v1 import alias_pb2

Daemon = Callable[[typer.Context, "str | None"], AbstractContextManager[Shelf]]
IsJson = Callable[[typer.Context], bool]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The alias.")]


def alias_app(daemon: Daemon, is_json: IsJson) -> typer.Typer:
    """Return the subcommands; ``daemon`` opens a shelf and reports its errors."""
    app = typer.Typer(help="Names that mean an artifact and can be moved to another.", no_args_is_help=True)

    def show(context: typer.Context, alias: Alias) -> None:
        if is_json(context):
            render.message(alias_to_proto(alias))
        else:
            render.aliases([alias])

    @app.command("set")
    def set_alias(
        context: typer.Context,
        name: Name,
        artifact_id: Annotated[str, typer.Argument(metavar="ID", help="What it is to mean.")],
        expect: Annotated[str, typer.Option(metavar="ID", help="What it means now; none: it is new.")] = "",
    ) -> None:
        """Make an alias mean an artifact, if it means what you expect."""
        with daemon(context, None) as shelf:
            show(context, shelf.set_alias(name, artifact_id, expect=expect or None))

    @app.command("list")
    def list_aliases(context: typer.Context) -> None:
        """List all aliases."""
        with daemon(context, None) as shelf:
            found = shelf.aliases()
        if is_json(context):
            render.message(alias_pb2.ListAliasesResponse(aliases=map(alias_to_proto, found)))
        else:
            render.aliases(found)

    @app.command()
    def history(context: typer.Context, name: Name) -> None:
        """Show what an alias meant, the latest first."""
        with daemon(context, None) as shelf:
            alias = next((one for one in shelf.aliases() if one.name == name), None)
            if alias is None:
                raise ArtifactNotFound(f"there is no alias {name!r}", name=name)
        if is_json(context):
            render.message(alias_to_proto(alias))
        else:
            render.alias_history(alias)

    @app.command()
    def rollback(context: typer.Context, name: Name) -> None:
        """Make an alias mean what it did before its last move."""
        with daemon(context, None) as shelf:
            show(context, shelf.roll_back_alias(name))

    _add_remove(app, daemon)
    return app


def _add_remove(app: typer.Typer, daemon: Daemon) -> None:
    @app.command()
    def remove(
        context: typer.Context,
        name: Name,
        expect: Annotated[str, typer.Option(metavar="ID", help="What it means now; none: whatever it means.")] = "",
    ) -> None:
        """Forget an alias; what it means stays."""
        with daemon(context, None) as shelf:
            shelf.remove_alias(name, expect=expect or None)

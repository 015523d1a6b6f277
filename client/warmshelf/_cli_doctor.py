"""``warmshelf doctor``: what was found, as a table with advice or as JSON.

There is no message of the protocol for it; the JSON has the names of ``Finding``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from warmshelf import _cli_render as render
from warmshelf import doctor
from warmshelf._cli_app import REFUSED_STATUS, UNREACHABLE_STATUS, Address, Output, app, output_of
from warmshelf._sizes import parse_size
from warmshelf.doctor import Finding, Level
from warmshelf.errors import InvalidRequest

_BUDGET_HELP = "For this budget, such as 64GiB; the daemon's, or half of what is free, by default."


@app.command("doctor")
def examine(
    context: typer.Context,
    worker: Annotated[
        bool, typer.Option("--worker", help="Check whether this process maps what the daemon serves.")
    ] = False,
    arena: Annotated[str, typer.Option(metavar="DIR", envvar="WARMSHELF_ARENA", help="The arena as seen here.")] = "",
    budget: Annotated[str, typer.Option(metavar="SIZE", envvar="WARMSHELF_BUDGET", help=_BUDGET_HELP)] = "",
    address: Address = None,
    output: Output = None,
) -> None:
    """Check this node, or with --worker this process's place on it, and say what to do."""
    caller = context.obj
    reached = doctor.examine(
        address or caller.address,
        arena=arena,
        budget_bytes=_bytes(budget),
        as_worker=worker,
        tls=caller.tls,
        token=caller.token_file,
        tenant=caller.tenant,
    )
    try:
        found = list(reached)
    except InvalidRequest as error:
        hint = "--address" if "address" in error.details else None
        raise typer.BadParameter(error.message, param_hint=hint) from error
    show(found, output_of(context, output))
    raise typer.Exit(status_of(found))


def _bytes(budget: str) -> int:
    try:
        return parse_size(budget) if budget else 0
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--budget") from error


def status_of(found: Sequence[Finding]) -> int:
    """Return the exit status: 1 with a problem, 3 if the only one is that no daemon answers, else 0."""
    problems = {finding.check for finding in found if finding.level is Level.PROBLEM}
    if not problems:
        return 0
    return UNREACHABLE_STATUS if problems == {doctor.REACH} else REFUSED_STATUS


def show(found: Sequence[Finding], output: render.Output) -> None:
    """Print what was found; what is worst comes last, next to the prompt."""
    if output is render.Output.JSON:
        print(json.dumps({"level": doctor.worst(found).value, "findings": [_row(one) for one in found]}, indent=2))
        return
    order = list(Level)
    rows = sorted(found, key=lambda one: order.index(one.level))
    render.table(
        ("LEVEL", "CHECK", "FOUND", "ADVICE"), [(r.level.value, r.check, r.text, r.advice or "-") for r in rows]
    )


def _row(one: Finding) -> dict[str, Any]:
    return {
        "check": one.check,
        "level": one.level.value,
        "text": one.text,
        "advice": one.advice,
        "numbers": dict(one.numbers),
    }

"""How ``warmshelf where`` prints what is resident on which node."""

from __future__ import annotations

import typer

from warmshelf import _cli_render as render
from warmshelf._fleet import node_to_proto, resident_to_proto
from warmshelf.types import ResidencyList
from warmshelf.v1 import residency_pb2


def show(found: ResidencyList, output: render.Output) -> None:
    """Print one line for each artifact of each node; say if something is missing."""
    if output is render.Output.JSON:
        render.message(
            residency_pb2.ListResidencyResponse(
                residents=map(resident_to_proto, found.residents),
                nodes=map(node_to_proto, found.nodes),
                partial=found.partial,
            )
        )
        return
    rows = [
        (
            one.artifact_id,
            one.node.name,
            one.node.zone or "-",
            one.node.address or "-",
            render.size(one.size_bytes),
            "yes" if one.pinned else "no",
            "yes" if one.keep_resident else "no",
            one.digest or "-",
        )
        for one in found.residents
    ]
    render.table(("ID", "NODE", "ZONE", "ADDRESS", "SIZE", "PINNED", "KEPT", "DIGEST"), rows)
    if found.partial:
        typer.echo("Not everything is told: the registry is not in reach, or a node has more.", err=True)

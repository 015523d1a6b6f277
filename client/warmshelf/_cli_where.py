"""How ``warmshelf where`` prints what is resident on which node."""

from __future__ import annotations

import typer

from warmshelf import _cli_render as render
from warmshelf._fleet import node_to_proto, resident_to_proto
from warmshelf.types import ArtifactState, Node, ResidencyList
from warmshelf.v1 import residency_pb2


def show(found: ResidencyList, asked_id: str, output: render.Output) -> None:
    """Print one line for each artifact of each node, and for each node that loads the one asked for.

    Say if something is missing.
    """
    if output is render.Output.JSON:
        render.message(
            residency_pb2.ListResidencyResponse(
                residents=map(resident_to_proto, found.residents),
                nodes=map(node_to_proto, found.nodes),
                partial=found.partial,
                loading_node_ids=[node.node_id for node in found.loading],
            )
        )
        return
    rows = [
        (
            one.artifact_id,
            *_place(one.node),
            ArtifactState.READY.value,
            render.size(one.size_bytes),
            "yes" if one.pinned else "no",
            "yes" if one.keep_resident else "no",
            one.digest or "-",
        )
        for one in found.residents
    ]
    rows += [(asked_id, *_place(node), ArtifactState.LOADING.value, "-", "-", "-", "-") for node in found.loading]
    render.table(("ID", "NODE", "ZONE", "ADDRESS", "STATE", "SIZE", "PINNED", "KEPT", "DIGEST"), rows)
    if found.partial:
        typer.echo("Not everything is told: the registry is not in reach, or a node has more.", err=True)


def _place(node: Node) -> tuple[str, str, str]:
    return node.name, node.zone or "-", node.address or "-"

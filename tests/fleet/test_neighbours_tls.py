"""Where TCP is TLS, nodes know each other by their certificates, or take nothing from each other."""

from __future__ import annotations

from pathlib import Path

from fleet.test_neighbours import ALLOWED, make_warm, node_of, outcome, told_of, write_base
from kit.authority import Authority, put
from kit.fleet import Fleet, Node
from kit.processes import read_all

NAME = "nodes.warmshelf"


def guarded(fleet: Fleet, name: str, authority: Authority, trusted: Authority, *options: str) -> Node:
    """Start a node with a certificate of one authority, to which those of another are known."""
    directory = fleet.root / f"tls-{name}"
    directory.mkdir()
    cert, key = authority.issue("a node", dns=[NAME]).write(directory, "node")
    put(directory / "ca.pem", trusted.cert)
    put(
        directory / "config.toml", f'[[identity]]\nname = "node"\nsubject = "dns:{NAME}"\nroles = ["reader"]\n'.encode()
    )
    files = ("--listen-cert-file", str(cert), "--listen-key-file", str(key))
    files += ("--listen-client-ca-file", f"{directory}/ca.pem", "--config", f"{directory}/config.toml")
    return node_of(fleet, name, *files, *options, neighbour_server_name=NAME)


def test_nodes_take_bytes_from_each_other_by_certificate_and_from_no_stranger(fleet: Fleet) -> None:
    ours, theirs = Authority("ours"), Authority("theirs")
    base: Path = write_base(fleet.models / "base")
    a = guarded(fleet, "a", ours, ours)
    b = guarded(fleet, "b", ours, ours, *ALLOWED)
    stranger = guarded(fleet, "c", theirs, theirs, *ALLOWED)
    digest = make_warm(fleet, a, "acme/base", base)
    with a.connect() as here, here.acquire("acme/base") as lease:
        expected = read_all(lease)
    with stranger.connect() as shelf:
        told_of(shelf, "acme/base", digest)
        with shelf.acquire("acme/base") as lease:  # from the source, which is still there
            assert read_all(lease) == expected
    assert outcome(stranger, "dead") == 1
    base.rename(fleet.models / "moved")
    with b.connect() as shelf:
        told_of(shelf, "acme/base", digest)
        with shelf.acquire("acme/base") as lease:
            assert read_all(lease) == expected
    assert outcome(b, "ok") == 1

"""Daemons that serve tenants: two, ``red`` and ``blue``, and callers of none."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

import warmshelf
from kit.authority import Authority, channel
from kit.processes import Daemon

TENANTS = ("red", "blue")
NODE = "node"
"""An operator of no tenant."""
STRANGER = "stranger"
"""Somebody of no tenant with every role but that one."""
WHO = (*TENANTS, NODE, STRANGER)
_ROLES = {NODE: ["operator"], STRANGER: ["reader", "registrar"]}


@dataclass
class Estate:
    """One such daemon. Who calls is known by tokens, or else by certificates."""

    daemon: Daemon
    by_certificate: bool = False
    authority: Authority = field(default_factory=Authority)

    def token(self, who: str) -> str:
        return f"token-of-{who}-0123456789"

    def write_config(self, tenants: Mapping[str, str], more: str = "") -> Path:
        """Write the configuration; ``tenants`` has more lines of each tenant's table."""
        root = self.daemon.root
        rows = ['anonymous_roles = ["operator"]', more]
        for tenant, lines in tenants.items():
            rows += ["[[tenant]]", f'name = "{tenant}"', lines]
        for who in (*tenants, NODE, STRANGER):
            (root / f"{who}.token").write_text(self.token(who))
            known_by = f'token = "file:{root}/{who}.token"'
            if self.by_certificate:
                known_by = f'subject = "uri:spiffe://cluster/{who}"'
            roles = ", ".join(f'"{role}"' for role in _ROLES.get(who, ["operator"]))
            rows += ["[[identity]]", f'name = "the-{who}"', known_by, f"roles = [{roles}]"]
            rows += [f'tenant = "{who}"'] if who in tenants else []
        path = root / "warmshelfd.toml"
        path.write_text("\n".join(rows))
        return path

    def start(
        self,
        *options: str,
        tenants: Mapping[str, str] | None = None,
        more: str = "",
        budget: str = "64MiB",
        wait: bool = True,
        failpoints: str = "",
    ) -> Estate:
        root = self.daemon.root
        self.daemon.tenants = tuple({*self.daemon.tenants, *(TENANTS if tenants is None else tenants)})
        self.authority.issue("daemon", dns=["localhost"]).write(root, "daemon")
        (root / "ca.pem").write_bytes(self.authority.cert)
        config = self.write_config(tenants if tenants is not None else dict.fromkeys(TENANTS, ""), more)
        files = ["--listen-cert-file", f"{root}/daemon.pem", "--listen-key-file", f"{root}/daemon.key"]
        files += ["--listen-client-ca-file", f"{root}/ca.pem"] if self.by_certificate else []
        self.daemon.start(
            "--budget", budget, "--config", str(config), *files, *options, wait=wait, failpoints=failpoints
        )
        return self

    def connect(self, who: str, **options: object) -> warmshelf.Shelf:
        """Return the shelf of somebody, at the Unix socket where tokens are known, else over TLS."""
        if not self.by_certificate:
            return self.daemon.connect(token=self.token(who), **options)
        cert, key = self.authority.issue(who, uri=[f"spiffe://cluster/{who}"]).write(self.daemon.root, who)
        tls = warmshelf.Tls(str(self.daemon.root / "ca.pem"), str(cert), str(key), "localhost")
        return warmshelf.connect(self.daemon.tcp_address, tls=tls, **options)  # type: ignore[arg-type]

    def channel(self, who: str) -> grpc.Channel:
        """Return a channel of gRPC's own."""
        if self.by_certificate:
            pair = self.authority.issue(who, uri=[f"spiffe://cluster/{who}"])
            return channel(self.daemon.tcp_address, self.authority.cert, pair)
        return channel(self.daemon.tcp_address, self.authority.cert, token=self.token(who))

    def arena(self, tenant: str) -> Path:
        return self.daemon.arena / tenant

    def segments(self, tenant: str) -> list[str]:
        """The segments in a tenant's directory."""
        return sorted(path.name for path in self.arena(tenant).iterdir() if len(path.name) == 32)


@contextmanager
def estate_in(root: Path, *, by_certificate: bool = False) -> Iterator[Estate]:
    """Return one that is not started yet; in the end it stops, and has left nothing half done."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="warmshelf-test-") as arena:
        (root / "models").mkdir()
        it = Estate(Daemon(root, Path(arena), root / "models"), by_certificate)
        yield it
        if it.daemon.process is not None:
            it.daemon.kill(signal.SIGTERM)
            it.daemon.check()

"""What a program does with a daemon: connect, register, load, acquire, and the rest.

Each method is one call of the daemon, except ``acquire``, which also brings the bytes
and starts over if the daemon was started anew meanwhile. Nothing here is printed or
logged.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import grpc

from warmshelf import _wire
from warmshelf._channel import Address, Connection, Deadline, default_address, parse_address
from warmshelf._incoming import CALL_TIMEOUT_SECONDS, LOAD_TIMEOUT_SECONDS, Incoming
from warmshelf._naming import Naming
from warmshelf._security import Security, Tls, choose
from warmshelf._where import Where
from warmshelf.digest import check_digest
from warmshelf.errors import Internal, InvalidRequest, LeaseLost, SessionLost
from warmshelf.export import check_target, write_directory
from warmshelf.layout import TensorSpec
from warmshelf.lease import Lease, arrive, grant
from warmshelf.session import Link, Session, holder_text
from warmshelf.shard import EVERYTHING, Shard
from warmshelf.types import (
    Artifact,
    Capabilities,
    Capacity,
    LeaseInfo,
    Progress,
    check_budget,
    check_id,
)
from warmshelf.v1 import capabilities_pb2, catalog_pb2, lease_pb2
from warmshelf.watch import Feed, Stream, Watch

ARENA_VARIABLE = "WARMSHELF_ARENA"
ACQUIRE_COUNT_MAX = 3
"""How often an acquire starts over because the daemon forgot the session or the lease."""

RANK_MAX = (1 << 31) - 1
"""What the protocol's int32 holds."""

PLAIN_FEATURE = "lora"
"""Sent with the features that a worker names, because on the wire an empty list means any."""

_Artifacts = list[Artifact]  # inside Shelf, ``list`` is a method
_Leases = list[LeaseInfo]


def connect(
    address: str | None = None,
    *,
    arena: str | os.PathLike[str] | None = None,
    holder: str | None = None,
    tls: Tls | grpc.ChannelCredentials | None = None,
    token: str | os.PathLike[str] | None = None,
    tenant: str | None = None,
    timeout: float = CALL_TIMEOUT_SECONDS,
) -> Shelf:
    """Return a Shelf for the daemon at an address. Nothing is opened before its first call.

    Args:
        address: ``unix:///PATH`` or ``HOST:PORT``; by default WARMSHELF_ADDRESS, else the
            socket at which this user's daemon listens.
        arena: the daemon's arena as this process sees it; by default WARMSHELF_ARENA, else,
            over a Unix socket, what the daemon says. Over TCP nothing is mapped without it.
        holder: who leases, for people; by default host, program and process.
        tls: for TCP; by default what WARMSHELF_TLS_CA, _CERT and _KEY name, else TCP is plain. Files that are
            renewed serve from the next call on.
        token: who calls; a text is the token, a path is a file that has it and is read for each call. By
            default the file of WARMSHELF_TOKEN_FILE. Never sent over plain TCP.
        tenant: whom an operator of no tenant calls for; by default that of WARMSHELF_TENANT.
        timeout: seconds each call may take, unless it is given its own.

    Raises:
        InvalidRequest: the address, the timeout, or what goes with them cannot be used.
    """
    Deadline(timeout)
    where = parse_address(address or default_address())
    security = choose(tls, token, tenant, is_unix=bool(where.socket_path))
    chosen_arena = os.fspath(arena) if arena is not None else os.environ.get(ARENA_VARIABLE, "")
    return Shelf(where, chosen_arena, holder, security, timeout)


class Shelf(Incoming, Naming, Where):
    """A daemon, as a program uses it. May be shared by threads; ``connect`` makes one.

    After a fork the child's calls are refused if its parent had called before, and work if it had not.
    ``_links`` has a link for each process that ever called, by its number: a child leaves its
    parent's alone. Only single operations of the dict, so no lock; ``_closed`` turns true once.
    ``_older`` are links that renewed certificates replaced: each lives as long as a lease on it.
    """

    def __init__(self, address: Address, arena: str, holder: str | None, security: Security, timeout: float) -> None:
        self.address = address.text
        self._address = address
        self._arena = arena
        self._holder = holder
        self._security = security
        self._timeout = timeout
        self._links: dict[int, Link] = {}
        self._older: weakref.WeakSet[Link] = weakref.WeakSet()
        self._closed = False

    # --- the catalog ---

    def get(self, artifact_id: str) -> Artifact:
        """Return an artifact as it is now."""
        request = catalog_pb2.GetArtifactRequest(artifact_id=check_id(artifact_id))
        connection = self._current().connection
        answer = connection.unary(connection.catalog.GetArtifact, request, self._deadline())
        return _wire.artifact_from_proto(answer.artifact)

    def list(self, *, base: str | None = None) -> _Artifacts:
        """Return all artifacts by ID, or a base's adapters; without config and module names, which ``get`` has."""
        request = catalog_pb2.ListArtifactsRequest(
            base_artifact_id=check_id(base) if base else "", view=catalog_pb2.ARTIFACT_VIEW_BASIC
        )
        connection = self._current().connection
        pages = self._pages(connection, connection.catalog.ListArtifacts, request)
        return [_wire.artifact_from_proto(message) for page in pages for message in page.artifacts]

    def watch(self, after: int = 0) -> Watch:
        """Return the changes of the catalog as they happen: an iterator that ends when it is closed.

        From 0, everything that is known comes first, then a COMPLETE. ``after`` goes on
        after a change that was told before. A broken connection or a restarted daemon does not
        end it: see ``Watch``. It raises only if the daemon stays away for this shelf's timeout.
        """
        return Watch(self._feed, after)

    def load(self, artifact_id: str, *, timeout: float | None = None, detach: bool = False) -> Iterator[Progress]:
        """Make an artifact resident, telling how far it is; the last progress has the artifact, READY.

        Nothing happens before the first item is asked for. Closing the iterator cancels
        the load, unless somebody else waits for it. With ``detach`` there is one item, with the
        artifact as it is then; the load goes on by itself, until the timeout at most.
        """
        request = catalog_pb2.LoadArtifactRequest(artifact_id=check_id(artifact_id), detach=detach)
        return self._progress(request, LOAD_TIMEOUT_SECONDS if timeout is None else timeout)

    def evict(self, artifact_id: str, *, drain: bool = False) -> Artifact:
        """Give an artifact's memory back; it stays registered.

        If it is leased, this fails; with ``drain`` no new lease is granted, and the memory
        goes with the last one.
        """
        request = catalog_pb2.EvictArtifactRequest(artifact_id=check_id(artifact_id), drain=drain)
        connection = self._current().connection
        answer = connection.unary(connection.catalog.EvictArtifact, request, self._deadline())
        return _wire.artifact_from_proto(answer.artifact)

    def remove(self, artifact_id: str) -> None:
        """Forget an artifact at once. Who holds a lease keeps the bytes."""
        request = catalog_pb2.RemoveArtifactRequest(artifact_id=check_id(artifact_id))
        connection = self._current().connection
        connection.unary(connection.catalog.RemoveArtifact, request, self._deadline())

    def verify(self, artifact_id: str, *, timeout: float | None = None) -> int:
        """Check every resident byte of an artifact, and return how many. Those found wrong are withdrawn."""
        request = catalog_pb2.VerifyArtifactRequest(artifact_id=check_id(artifact_id))
        connection = self._current().connection
        deadline = Deadline(LOAD_TIMEOUT_SECONDS if timeout is None else timeout)
        return int(connection.unary(connection.catalog.VerifyArtifact, request, deadline).checked_bytes)

    def export(self, artifact_id: str, directory: str | os.PathLike[str], *, timeout: float | None = None) -> Artifact:
        """Write an artifact as a directory of safetensors and its small files, bit for bit; return it as it was.

        See ``warmshelf.export`` for what is in it. It appears whole or not at all.

        Raises:
            InvalidRequest: the directory exists and is not empty, or cannot be written.
            UnsupportedDtype: safetensors has no such dtype; names tensor and dtype.
        """
        check_target(directory)
        with self.acquire(artifact_id, timeout=LOAD_TIMEOUT_SECONDS if timeout is None else timeout) as lease:
            write_directory(lease, directory)
            return lease.artifact

    def leases(self, artifact_id: str | None = None) -> _Leases:
        """Return all live leases, oldest first, or those on one artifact."""
        request = lease_pb2.ListLeasesRequest(artifact_id=check_id(artifact_id) if artifact_id else "")
        connection = self._current().connection
        pages = self._pages(connection, connection.lease.ListLeases, request)
        return [_wire.lease_from_proto(message) for page in pages for message in page.leases]

    def capabilities(self) -> Capabilities:
        """Return what the daemon can do."""
        request = capabilities_pb2.GetCapabilitiesRequest()
        connection = self._current().connection
        answer = connection.unary(connection.capabilities.GetCapabilities, request, self._deadline())
        return _wire.capabilities_from_proto(answer)

    def capacity(self, like: str | None = None) -> Capacity:
        """Return what the arena holds, and how many more artifacts of the size of ``like`` fit."""
        request = capabilities_pb2.GetCapacityRequest(like_artifact_id=check_id(like) if like else "")
        connection = self._current().connection
        answer = connection.unary(connection.capabilities.GetCapacity, request, self._deadline())
        return _wire.capacity_from_proto(answer)

    def set_budget(self, budget_bytes: int, *, timeout: float | None = None) -> Capacity:
        """Make the budget larger or smaller until the daemon ends; return what the arena holds then.

        For a smaller one, the least recently used leave; never what is leased, mapped or kept.

        Raises:
            ArenaFull: until the timeout, too little could leave; the budget is what it was.
            InvalidConfig: the node has not so much.
        """
        request = capabilities_pb2.SetBudgetRequest(budget_bytes=check_budget(budget_bytes))
        connection = self._current().connection
        answer = connection.unary(connection.capabilities.SetBudget, request, self._deadline(timeout))
        return _wire.capacity_from_proto(answer.capacity)

    # --- leases ---

    def acquire(
        self,
        artifact_id: str,
        *,
        timeout: float | None = None,
        resident_only: bool = False,
        expected_digest: str | None = None,
        rank_max: int = 0,
        features: Sequence[str] | None = None,
        shard: Shard | None = None,
        writable: bool = True,
    ) -> Lease:
        """Lease an artifact, loading it if need be, and return it with its bytes at hand.

        Args:
            artifact_id: which.
            timeout: seconds for all of it, also a load and a stream.
            resident_only: do not load; fail with NotResident instead.
            expected_digest: refuse any other content.
            rank_max: for adapters, the largest rank that the worker takes; 0: any.
            features: for adapters, what the worker honours beyond plain LoRA; None: anything.
            shard: only this rank's slice of each tensor: views of a mapped segment, and slices made by
                the daemon where it is streamed; None: every tensor whole.
            writable: whether this process may write into its own copy of a mapped segment. Without, the mapping
                is read-only and shared, as ``warmshelf.torch.to_device`` needs it; a write ends the process.
        """
        if isinstance(features, str) or not isinstance(rank_max, int) or not 0 <= rank_max <= RANK_MAX:
            raise InvalidRequest(
                f"features is a list of names, and rank_max is from 0 to {RANK_MAX}: {features!r}, {rank_max!r}",
                rank_max_limit=RANK_MAX,
            )
        request = lease_pb2.AcquireLeaseRequest(
            artifact_id=check_id(artifact_id),
            resident_only=resident_only,
            expected_digest=check_digest(expected_digest) if expected_digest else "",
            rank_max=rank_max,
            features=() if features is None else (PLAIN_FEATURE, *features),
        )
        deadline = self._deadline(timeout)
        for _ in range(ACQUIRE_COUNT_MAX - 1):
            try:
                return self._acquire(request, shard, deadline, writable=writable)
            except (SessionLost, LeaseLost):
                continue
        return self._acquire(request, shard, deadline, writable=writable)

    def stream_tensors(
        self, artifact_id: str, *, shard: Shard | None = None, timeout: float | None = None, writable: bool = True
    ) -> Iterator[tuple[TensorSpec, memoryview]]:
        """Lease an artifact and yield its tensors layer by layer, each as soon as its bytes are here and checked.

        So a worker works on the first layers while the others are still on their way. The lease ends
        with the iterator; bytes that were yielded stay valid. What breaks is raised where it breaks: unlike
        ``acquire``, this does not start over.

        Args:
            artifact_id: which.
            shard: only this rank's slice of each tensor; None: every tensor whole.
            timeout: seconds for all of it, also a load.
            writable: as for ``acquire``.
        """
        request = lease_pb2.AcquireLeaseRequest(artifact_id=check_id(artifact_id))
        deadline = self._deadline(timeout)
        link, session, answer = self._lease(request, deadline)
        yield from arrive(link, session, answer, self._arena, shard or EVERYTHING, deadline, writable=writable)

    def _acquire(
        self, request: lease_pb2.AcquireLeaseRequest, shard: Shard | None, deadline: Deadline, *, writable: bool
    ) -> Lease:
        return grant(*self._lease(request, deadline), self._arena, shard, deadline, writable=writable)

    def _lease(
        self, request: lease_pb2.AcquireLeaseRequest, deadline: Deadline
    ) -> tuple[Link, Session, lease_pb2.AcquireLeaseResponse]:
        link = self._current()
        session = link.session(deadline)
        request.session_id, request.lease_id = session.session_id, secrets.token_hex(16)
        try:
            answer = link.connection.unary(link.connection.lease.AcquireLease, request, deadline)
        except SessionLost:
            session.end()
            raise
        except BaseException:
            # The lease may have been granted and only the answer lost.
            link.release_later(request.session_id, request.lease_id)
            raise
        return link, session, answer

    # --- the rest ---

    def close(self) -> None:
        """End the session, and with it all leases, and close the connection. Idempotent.

        Views, arrays and tensors stay valid.
        """
        self._closed = True
        for link in (self._links.pop(os.getpid(), None), *self._older):
            if link is not None:
                link.close()

    def __enter__(self) -> Shelf:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Shelf {self.address}{' closed' if self._closed else ''}>"

    def _current(self) -> Link:
        if self._closed:
            raise InvalidRequest("the shelf has been closed")
        pid = os.getpid()
        link = self._links.get(pid)
        if link is None:
            return self._links.setdefault(pid, self._new_link())
        if link.connection.is_renewed:
            self._older.add(link)
            link = self._links[pid] = self._new_link()
        return link

    def _new_link(self) -> Link:
        return Link(Connection(self._address, self._security), holder_text(self._holder))

    def _streaming(self) -> Shelf:
        """Return another shelf of the same daemon, which maps nothing."""
        return Shelf(self._address, os.devnull, self._holder, self._security, self._timeout)

    def _deadline(self, timeout: float | None = None) -> Deadline:
        return Deadline(self._timeout if timeout is None else timeout)

    def _pages(self, connection: Connection, method: Any, request: Any) -> Iterator[Any]:
        while True:
            page = connection.unary(method, request, self._deadline())
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _feed(self, after: int) -> Feed:
        """Wait for the daemon by a deadline, which the stream itself has not."""
        connection = self._current().connection
        request = capabilities_pb2.GetCapabilitiesRequest()
        connection.unary(connection.capabilities.GetCapabilities, request, self._deadline())
        return Stream(connection, after)

    def _progress(self, request: catalog_pb2.LoadArtifactRequest, timeout: float) -> Iterator[Progress]:
        connection = self._current().connection
        deadline = Deadline(timeout)

        def start() -> tuple[Any, Any]:
            call = connection.catalog.LoadArtifact(request, timeout=deadline.left())
            return call, next(call, None)

        call, message = connection.persist(start, deadline)
        try:
            last = None
            while message is not None:
                last = _wire.progress_from_proto(message)
                yield last
                message = connection.once(lambda: next(call, None))
        finally:
            call.cancel()
        if last is None or last.artifact is None:
            raise Internal(f"the daemon ended the load of {request.artifact_id!r} without a result")

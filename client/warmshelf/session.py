"""The session on which a process's leases hang, and what else of a Shelf belongs to one process.

A session is a stream held open by a thread. When it breaks, its leases have ended;
the next acquire opens another. Knows nothing of artifacts or bytes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import grpc

from warmshelf._channel import Connection, Deadline
from warmshelf.errors import DaemonUnreachable, DeadlineExceeded, Internal
from warmshelf.v1 import lease_pb2

RELEASE_SECONDS = 5.0
"""How long a release may take. If it fails, the lease ends with its session."""


class Session:
    """One stream of OpenSession, read by a thread of its own.

    Written by that thread only, read by any: ``session_id`` before ``_opened`` is set,
    ``lost``, ``draining`` and ``superseded`` (lease ids) from then on.
    """

    def __init__(self, call: Any) -> None:
        self.session_id = ""
        self.lost = False
        self.draining = False
        self.superseded: set[str] = set()
        self._call = call
        self._error: grpc.RpcError | None = None
        self._opened = threading.Event()
        threading.Thread(target=self._read, name="warmshelf-session", daemon=True).start()

    def wait_opened(self, deadline: Deadline) -> None:
        """Wait for the session's id.

        Raises:
            grpc.RpcError: the stream ended instead.
            DaemonUnreachable: nothing came, though a daemon has nothing to wait for before it names a session.
        """
        try:
            opened = self._opened.wait(deadline.left())
        except DeadlineExceeded:
            opened = False
        if not opened:
            self.end()
            raise DaemonUnreachable(
                f"no daemon has opened a session within {deadline.timeout_seconds:g} s",
                timeout_seconds=float(deadline.timeout_seconds),
            )
        if self._error is not None:
            raise self._error
        if not self.session_id:
            raise Internal("the daemon ended a session before it named it")

    def end(self) -> None:
        """End the stream, and so every lease on it."""
        self.lost = True
        self._call.cancel()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._take(message)
        except grpc.RpcError as error:
            self._error = None if self.session_id else error
        finally:
            self.lost = True
            self._opened.set()

    def _take(self, message: lease_pb2.OpenSessionResponse) -> None:
        event = message.WhichOneof("event")
        if event == "session_id":
            self.session_id = message.session_id
            self._opened.set()
        elif event == "draining":
            self.draining = True
        elif event == "superseded":
            self.superseded.add(message.superseded.lease_id)


def holder_text(holder: str | None) -> str:
    """Return who leases, as the wire takes it; by default host, program and process."""
    if holder is None:
        program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        holder = f"{socket.gethostname()[:64]}/{program[:64]}:{os.getpid()}"  # the daemon takes 256 bytes
    return holder.encode("utf-8", "backslashreplace").decode()


_inherited: list[object] = []
"""What belongs to the process that this one was forked from: never closed and never
destroyed here, because the sockets are still the parent's. Only ever appended to."""


def _close(connection: Connection, pid: int) -> None:
    if pid == os.getpid():
        connection.close()
    else:
        _inherited.append(connection)


class Link:
    """What a Shelf has in one process: a connection, and a session once it is needed.

    ``_session`` is guarded by ``_lock``, which is held while a session opens, so that
    callers who come together open one; each waits no longer than its own deadline.
    """

    def __init__(self, connection: Connection, holder: str) -> None:
        self.connection = connection
        self.pid = os.getpid()
        self._holder = holder
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._releasing: set[Any] = set()  # calls under way that nobody waits for: gRPC cancels what is forgotten
        self._finalizer = weakref.finalize(self, _close, connection, self.pid)  # also at the interpreter's exit

    def session(self, deadline: Deadline) -> Session:
        """Return the open session, or open one."""
        with self._locked(deadline):
            if self._session is None or self._session.lost:
                self._session = self.connection.persist(lambda: self._open(deadline), deadline)
            return self._session

    def release_later(self, session_id: str, lease_id: str) -> None:
        """Tell the daemon that a lease is not wanted, without waiting for its answer."""
        try:
            self.connection.check_daemon()
        except DaemonUnreachable:  # whoever is there now is not to be told
            return
        request = lease_pb2.ReleaseLeaseRequest(session_id=session_id, lease_id=lease_id)
        call = self.connection.lease.ReleaseLease.future(request, timeout=RELEASE_SECONDS)
        self._releasing.add(call)
        call.add_done_callback(self._releasing.discard)

    def close(self) -> None:
        """End the session and close the connection. Idempotent; harmless in a forked child."""
        self._finalizer()

    def _open(self, deadline: Deadline) -> Session:
        request = lease_pb2.OpenSessionRequest(holder=self._holder)
        session = Session(self.connection.lease.OpenSession(request))
        session.wait_opened(deadline)
        return session

    @contextlib.contextmanager
    def _locked(self, deadline: Deadline) -> Iterator[None]:
        if not self._lock.acquire(timeout=deadline.left()):
            raise DaemonUnreachable(
                f"no daemon has opened the session that another call asks for within {deadline.timeout_seconds:g} s",
                timeout_seconds=float(deadline.timeout_seconds),
            )
        try:
            yield
        finally:
            self._lock.release()

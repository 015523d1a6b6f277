"""A small hub that speaks what huggingface_hub asks for: which commit, which files, and where each lies.

Large files lie on another server, as on the public hub, behind a signed address; that
server refuses whoever sends it a token.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_canary_token"
LARGE_BYTES = 1000
"""From here on a file lies on the other server."""


@dataclass
class Repository:
    """The commits of one repository, and what its branches point to."""

    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    is_private: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        name = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


class Hub:
    """Two servers in threads of this process."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.signature = "signature-canary-0"  # what the other server takes
        self.busy = 0  # so many answers are 503 first
        self.cut = 0  # so many answers with bytes end in the middle
        self.ignores_ranges = False
        self.sends_wrong_ranges = False
        self.moves_on = False  # the other server redirects further
        self.endpoint = self.store = ""

    def repository(self, name: str) -> Repository:
        return self.repositories.setdefault(name, Repository())

    def find(self, digest: str) -> bytes | None:
        every = (data for it in self.repositories.values() for files in it.commits.values() for data in files.values())
        return next((data for data in every if hashlib.sha256(data).hexdigest() == digest), None)


@contextmanager
def hub() -> Iterator[Hub]:
    it = Hub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(kind, it)) for kind in (_HubHandler, _StoreHandler)]
    it.endpoint, it.store = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield it
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.0"  # a connection for each request: none stays open

    def do_HEAD(self) -> None:
        self._take()

    def do_GET(self) -> None:
        self._take()

    def log_message(self, *args: object) -> None:
        pass

    def _take(self) -> None:
        self.hub.requests.append((self.command, unquote(urlsplit(self.path).path), self.headers.get("Range", "")))
        if self.hub.busy:
            self.hub.busy -= 1
            self.answer(503, b"canary in the body")
        else:
            self.serve()

    def serve(self) -> None:
        raise NotImplementedError

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def answer_file(self, data: bytes, **headers: str) -> None:
        """Answer with the range that was asked for."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not found or self.hub.ignores_ranges:
            self.answer(200, data, **headers)
            return
        start, end = int(found[1]), int(found[2]) + 1
        told = start + self.hub.sends_wrong_ranges
        part = data[start:end]
        if self.hub.cut:
            self.hub.cut -= 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {told}-{end - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part[: len(part) // 2])
            return
        self.answer(206, part, Content_Range=f"bytes {told}-{end - 1}/{len(data)}", **headers)


class _HubHandler(_Handler):
    """The hub: knows repositories, and has small files."""

    def serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._tell(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3])
        else:
            self.answer(404)

    def _repository(self, name: str) -> Repository | None:
        found = self.hub.repositories.get(name)
        if found and found.is_private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            found = None
        if not found:
            self.answer(401, X_Error_Code="RepoNotFound")
        return found

    def _tell(self, name: str, revision: str) -> None:
        found = self._repository(name)
        if not found:
            return
        commit = found.resolve(revision)
        if commit is None:
            self.answer(404, X_Error_Code="RevisionNotFound")
            return
        siblings = [_sibling(path, data) for path, data in found.commits[commit].items()]
        self.answer(200, json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())

    def _resolve(self, name: str, commit: str, path: str) -> None:
        found = self._repository(name)
        if not found:
            return
        data = found.commits[commit].get(path)
        if data is None:
            self.answer(404, X_Error_Code="EntryNotFound")
            return
        headers = {"X_Repo_Commit": commit, "ETag": f'"{_git_id(data)}"'}
        if len(data) < LARGE_BYTES:
            self.answer_file(data, **headers)
            return
        digest = hashlib.sha256(data).hexdigest()
        headers |= {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(data))}
        self.answer(302, Location=f"{self.hub.store}/{digest}?Signature={self.hub.signature}", **headers)


class _StoreHandler(_Handler):
    """The other server: knows digests and signatures, and no tokens."""

    def serve(self) -> None:
        parts = urlsplit(self.path)
        if self.headers.get("Authorization"):
            self.answer(400)
        elif parts.query != f"Signature={self.hub.signature}":
            self.answer(403, b"canary in the body")
        elif self.hub.moves_on:
            self.answer(302, Location="http://169.254.169.254/latest?canary")
        else:
            data = self.hub.find(parts.path.strip("/"))
            assert data is not None
            self.answer_file(data, ETag='"x"')


def _handler(kind: type[_Handler], hub: Hub) -> type[_Handler]:
    return type(kind.__name__, (kind,), {"hub": hub})


def _sibling(path: str, data: bytes) -> dict[str, object]:
    told: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": _git_id(data)}
    if len(data) >= LARGE_BYTES:
        told["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return told


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

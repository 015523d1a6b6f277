"""What brings a daemon to a point where it dies, one deed for each kind; and the story of each."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from killing.truth import Content, Story
from kit.plain import CALL_SECONDS, Plain
from kit.processes import Daemon
from kit.pushes import PlainPush
from warmshelf.v1 import alias_pb2, alias_pb2_grpc, catalog_pb2

NO_DIGEST = "blake3:" + "0" * 64
ALIAS = "current"
DEATH_SECONDS = 20
_DEATHS = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


class Deeds:
    """Clients of one daemon after another. ``stories`` is what they know of each ID."""

    def __init__(self, daemon: Daemon, chance: random.Random) -> None:
        self.daemon = daemon
        self.stories: dict[str, Story] = {}
        self.pushes: dict[str, tuple[str, dict[str, bytes]]] = {}  # by artifact, those unfinished: push ID and files
        self.alias: tuple[str, ...] = ("",)  # what it may mean
        self.latest = ""  # the ID that the last deed was about
        self._chance = chance
        self._last_number = 100

    def do(self, name: str) -> None:
        """Do something until the daemon dies of it, or it is done."""
        try:
            with Plain(self.daemon.address) as plain:
                getattr(self, name)(plain)
        except grpc.RpcError as error:
            if error.code() not in _DEATHS:
                raise

    # --- loads ---

    def load_base(self, plain: Plain) -> str:
        return self._load(plain, is_adapter=False)

    def load_any(self, plain: Plain) -> str:
        return self._load(plain, is_adapter=self._chance.random() < 0.5)

    def load_twin(self, plain: Plain) -> None:
        """Equal content under a second ID; an adapter, whose digest is known before it is sealed."""
        first = self._load(plain, is_adapter=True)
        content = self.stories[first].contents[0]
        second = self._new(content, self.daemon.models / f"{content.number}-twin", f"new/{content.number}-twin")
        self._register(plain, second)
        self._acquire(plain, second)

    def load_refused(self, plain: Plain) -> None:
        """Its bytes are not those that are expected."""
        artifact_id = self._new(self._content(is_adapter=False))
        self.stories[artifact_id].is_refused = True
        self._register(plain, artifact_id, expected_digest=NO_DIGEST)
        plain.acquire(artifact_id)

    def _load(self, plain: Plain, *, is_adapter: bool) -> str:
        artifact_id = self._new(self._content(is_adapter=is_adapter))
        self._register(plain, artifact_id)
        self._acquire(plain, artifact_id)
        return artifact_id

    # --- changes ---

    def replace(self, plain: Plain) -> None:
        artifact_id = self._load(plain, is_adapter=self._chance.random() < 0.5)
        story = self.stories[artifact_id]
        old = story.contents[0]
        new = Content(old.number, 2, old.is_adapter)
        story.sources.append(new.write(self.daemon.models / f"{new.number}-2"))
        story.contents, story.is_resident = (new, old), False
        self._register(plain, artifact_id, replace=True)
        story.contents = (new,)

    def move(self, plain: Plain) -> None:
        artifact_id = self._load(plain, is_adapter=True)
        before, self.alias = self.alias, (artifact_id, *self.alias)
        expected = before[0] if len(before) == 1 else self.alias_now(plain)
        stub = alias_pb2_grpc.AliasServiceStub(plain.channel)
        request = alias_pb2.SetAliasRequest(name=ALIAS, artifact_id=artifact_id, expected_artifact_id=expected)
        stub.SetAlias(request, timeout=CALL_SECONDS)
        self.alias = (artifact_id,)

    def alias_now(self, plain: Plain) -> str:
        stub = alias_pb2_grpc.AliasServiceStub(plain.channel)
        found = stub.ListAliases(alias_pb2.ListAliasesRequest(), timeout=CALL_SECONDS).aliases
        return next((one.history[-1].artifact_id for one in found if one.name == ALIAS), "")

    def evict(self, plain: Plain) -> None:
        artifact_id = self._load(plain, is_adapter=self._chance.random() < 0.5)
        self._release(plain)
        self.stories[artifact_id].is_resident = False
        plain.evict(artifact_id)

    def remove(self, plain: Plain) -> None:
        self.remove_one(plain, self._load(plain, is_adapter=self._chance.random() < 0.5))

    def remove_one(self, plain: Plain, artifact_id: str) -> None:
        story = self.stories[artifact_id]
        story.is_known, story.is_resident = None, False
        plain.remove(artifact_id)
        story.is_known = False

    def push(self, plain: Plain) -> None:
        content = self._content(is_adapter=False)
        artifact_id = self.latest = f"new/{content.number}"
        self.stories[artifact_id] = Story((content,))
        self.pushes[artifact_id] = f"{content.number:032x}", content.files()
        self.go_on(artifact_id)

    def go_on(self, artifact_id: str) -> None:
        """Begin a push, or go on with it, to its end."""
        push_id, files = self.pushes[artifact_id]
        with PlainPush(self.daemon.address, files, push_id) as push:
            if missing := list(push.chunks(push.begin(artifact_id))):
                push.write(missing)
            push.finish()
        del self.pushes[artifact_id]
        self.stories[artifact_id].is_known = True

    # --- reads, anything ---

    def read(self, plain: Plain) -> None:
        """Lease, stream, let go, until the daemon dies of that or of the workers'."""
        deadline = time.monotonic() + DEATH_SECONDS
        while time.monotonic() < deadline:
            lease = plain.acquire("kept/0", resident_only=True).lease
            for _ in plain.read(lease.lease_id):
                pass
            plain.release(lease.lease_id)
            with Plain(self.daemon.address):
                pass

    def anything(self, plain: Plain) -> None:
        """One deed after another, until a kill from outside ends it."""
        kill = threading.Timer(self._chance.uniform(0, 0.6), os.kill, (self.daemon.pid, signal.SIGKILL))
        kill.start()
        try:
            while True:
                deeds: list[Callable[[Plain], Any]] = [
                    self.load_any, self.replace, self.evict, self.remove, self.push, self.move, self.load_twin,
                ]  # fmt: skip
                self._chance.choice(deeds)(plain)
        finally:
            kill.join()

    # --- parts ---

    def _content(self, *, is_adapter: bool) -> Content:
        self._last_number += 1
        return Content(self._last_number, is_adapter=is_adapter)

    def _new(self, content: Content, source: Path | None = None, artifact_id: str = "") -> str:
        artifact_id = self.latest = artifact_id or f"new/{content.number}"
        source = source or self.daemon.models / str(content.number)
        self.stories[artifact_id] = Story((content,), sources=[content.write(source)])
        return artifact_id

    def _register(self, plain: Plain, artifact_id: str, *, replace: bool = False, expected_digest: str = "") -> None:
        story = self.stories[artifact_id]
        request = catalog_pb2.RegisterArtifactRequest(artifact_id=artifact_id, replace=replace)
        request.spec.source.uri = f"file://{story.sources[-1]}"
        request.spec.source.expected_digest = expected_digest
        plain.catalog.RegisterArtifact(request, timeout=CALL_SECONDS)
        story.is_known = True

    def _acquire(self, plain: Plain, artifact_id: str) -> None:
        self._lease_id = plain.acquire(artifact_id).lease.lease_id
        self.stories[artifact_id].is_resident = True

    def _release(self, plain: Plain) -> None:
        plain.release(self._lease_id)

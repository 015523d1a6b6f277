"""Shows warmshelf with a real model, real processes and a real crash.

    make demo            or: python -m examples.demo [--json FILE]

A daemon loads SmolLM2-135M once. Workers acquire it by ID, two by mapping and one as if
it were on another host, and answer a question exactly as the model on disk does. So they do
with a LoRA adapter, registered in two forms, evicted and loaded again by its ID. Then the
daemon is killed and the model's file moved away: the restarted daemon still has the
weights, and one more worker gets them at once. Exits 1 if anything differs, 2 if it cannot start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import warmshelf
from examples.alone import OFFLINE, run_alone
from examples.daemon import Daemon, own_daemon
from examples.demo_adapter import ADAPTER_NAME, TENSORS_NAME, adapter_directories
from examples.demo_facts import AdapterFacts, Facts, PeerAdapterFacts, PeerFacts, PeerLoad, Peers, WorkerFacts
from examples.demo_model import MODEL_NAME, is_made, model_directory, tensors_file
from examples.demo_report import console, megabytes, milliseconds, say, show
from examples.places import own_directory, remove_abandoned
from examples.tied import tied

ARTIFACT_ID = f"demo/{MODEL_NAME}"
ADAPTER_ID = "demo/lora"
TENSORS_ADAPTER_ID = "demo/lora-tensors"
"""The same adapter, in tensorizer's form."""
BUDGET_BYTES = 384 << 20
"""Room for model and adapter, with the fifth that the daemon keeps for adapters alone."""
PEER_WAYS = ("safetensors_mapped", "safetensors_copied", "tensorizer")
WORKER_END_SECONDS_MAX = 10.0
"""Longest wait for a worker whose input has ended."""


def main() -> int:
    """Run the demo; return its exit status."""
    parser = argparse.ArgumentParser(prog="demo", description="warmshelf with a real model, processes and a crash")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found to FILE")
    parser.add_argument(
        "--memory", type=Path, metavar="DIR", default=Path("/dev/shm"), help="a memory file system for the arena"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", default=Path("build/demo"), help="where the model is kept")
    arguments = parser.parse_args()
    if hindrance := _hindrance(arguments):
        parser.exit(2, f"demo: {hindrance}\n")
    _leave_in_order()
    try:
        facts = _run(arguments.cache.resolve(), arguments.memory)
    except KeyboardInterrupt:
        return 130
    show(facts)
    faults = list(facts.faults())
    if arguments.json:
        arguments.json.write_text(json.dumps({**asdict(facts), "faults": faults}, indent=2))
    for fault in faults:
        console.print(f"differs: {fault}", style="bold red", markup=False)
    return 1 if faults else 0


def _hindrance(arguments: argparse.Namespace) -> str:
    """Say what would stop the demo later; empty if nothing does."""
    try:
        arguments.cache.mkdir(parents=True, exist_ok=True)
        if arguments.json:
            arguments.json.open("a").close()
        remove_abandoned(arguments.memory)
        return memory_hindrance(arguments.memory, os.statvfs(arguments.memory))
    except OSError as error:
        return f"cannot use {error.filename}: {error.strerror}"


def memory_hindrance(directory: Path, volume: os.statvfs_result) -> str:
    """Say why the file system has too little room for the arena; empty if it has enough."""
    free_bytes = volume.f_bavail * volume.f_frsize
    if volume.f_blocks == 0 or free_bytes >= BUDGET_BYTES:  # a tmpfs without a limit says 0
        return ""
    return (
        f"needs {megabytes(BUDGET_BYTES)} of memory in {directory}, which has {megabytes(free_bytes)} free: "
        "name another memory file system with --memory DIR, or start the container with docker run --shm-size=512m"
    )


def _leave_in_order() -> None:
    """End on SIGTERM and SIGHUP as after an exception: with everything started ended, once."""

    def leave(number: int, _frame: object) -> NoReturn:
        for other in heeded:  # a closed terminal sends more than one
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    # What is ignored already stays so: that is how nohup works.
    heeded = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    for one in heeded:
        signal.signal(one, leave)


def _run(cache: Path, memory: Path) -> Facts:
    model, adapters = _made(cache)
    with ExitStack() as stack:
        folder = stack.enter_context(own_directory(cache))
        peers = _peers(model, tensors_file(cache), *adapters)
        source = _linked(model, folder / "model")
        daemon = stack.enter_context(own_daemon(sources=folder, budget=f"{BUDGET_BYTES}", arena_parent=memory))
        start_seconds = daemon.start()
        say("daemon", f"ready in {milliseconds(start_seconds)}, {daemon.address} and {daemon.tcp_address}")
        load_seconds = _load(daemon, source)
        _register(daemon, folder, adapters)
        ways = _ways(daemon)
        say("workers", f"starting {len(ways)}, each with a torch of its own ...")
        workers = [stack.enter_context(_worker(folder, *way)) for way in ways]
        evicted_bytes = _before_the_crash(daemon, *workers[:-1])
        daemon.kill()
        source.rename(folder / "moved-away")
        say("crash", "the daemon is killed with SIGKILL, the model's source is moved away")
        restart_seconds = daemon.start()
        say("daemon", f"ready again in {milliseconds(restart_seconds)}")
        workers[-1].acquire()
        workers[-1].adapt(ADAPTER_ID)
        say("workers", "all answer once more, then count their memory ...")
        found = tuple(worker.finish() for worker in workers)
        say("at the end", f"without the adapter: {found[0].text_after}")
        arena_bytes = _arena_bytes(daemon.arena)
        return Facts(peers, start_seconds, load_seconds, evicted_bytes, restart_seconds, arena_bytes, found)


def _before_the_crash(daemon: Daemon, first: _Worker, second: _Worker, remote: _Worker) -> int:
    """Let the workers acquire all there is, with an eviction between; return the bytes that this gave back."""
    first.acquire()
    first.adapt(ADAPTER_ID)
    first.adapt(TENSORS_ADAPTER_ID)
    is_shared = len({use["segment_id"] for use in first.adapters}) == 1
    say("shared", "equal content: both IDs are one segment" if is_shared else "not: each ID has its own segment")
    first.ask(f"drop {ADAPTER_ID} {TENSORS_ADAPTER_ID}")
    evicted_bytes = _evict(daemon)
    first.adapt(ADAPTER_ID)
    second.acquire()
    second.adapt(ADAPTER_ID)
    remote.acquire()
    remote.adapt(ADAPTER_ID)
    remote.adapt(TENSORS_ADAPTER_ID)
    return evicted_bytes


def _made(cache: Path) -> tuple[Path, tuple[Path, Path]]:
    """Return the model and the two forms of the adapter."""
    where = cache.relative_to(Path.cwd()) if cache.is_relative_to(Path.cwd()) else cache
    made = is_made(cache)
    say("model", f"{MODEL_NAME}, {'kept in' if made else 'made once, which takes half a minute, in'} {where}")
    model = model_directory(cache)
    made = (cache / ADAPTER_NAME).exists()
    say("adapter", f"a LoRA for it, {'kept there too' if made else 'trained once, which takes 20 seconds'}")
    return model, adapter_directories(cache, model)


def _peers(model: Path, tensors: Path, adapter: Path, adapter_as_tensors: Path) -> Peers:
    say("measuring", "safetensors, tensorizer and peft, which takes some 15 seconds ...")
    told = run_alone("examples.demo_peers", model, tensors, adapter, adapter_as_tensors / TENSORS_NAME)
    facts = json.loads(told.splitlines()[-1])
    for some in facts.values():
        for way in PEER_WAYS:
            some[way] = PeerLoad(**some[way])
    peers = Peers(PeerFacts(**facts["model"]), PeerAdapterFacts(**facts["adapter"]))
    say("reference", f"from disk: {peers.model.text}")
    say("reference", f"from disk, with the adapter: {peers.adapter.text}")
    return peers


def _linked(model: Path, directory: Path) -> Path:
    """Return a directory with the model's files as hard links: this one may be moved away."""
    directory.mkdir()
    for file in model.iterdir():
        (directory / file.name).hardlink_to(file)
    return directory


def _load(daemon: Daemon, source: Path) -> float:
    with warmshelf.connect(daemon.address) as shelf:
        shelf.register(ARTIFACT_ID, f"file://{source}")
        began = time.perf_counter()
        for _ in shelf.load(ARTIFACT_ID):
            pass
        seconds = time.perf_counter() - began
    say("load", f"{ARTIFACT_ID} in {milliseconds(seconds)}; from here on the ID is enough")
    return seconds


def _register(daemon: Daemon, folder: Path, adapters: tuple[Path, Path]) -> None:
    with warmshelf.connect(daemon.address) as shelf:
        for artifact_id, directory in zip((ADAPTER_ID, TENSORS_ADAPTER_ID), adapters, strict=True):
            source = _linked(directory, folder / directory.name)
            artifact = shelf.register(artifact_id, f"file://{source}", base=ARTIFACT_ID)
            found = artifact.inspection and artifact.inspection.adapter
            if found:
                about = f"{len(found.module_names)} modules of rank {found.rank_max}, base {found.base_check.value}"
                say("register", f"{artifact_id}: {about}")


def _evict(daemon: Daemon) -> int:
    """Evict both forms of the adapter; return how many bytes that gave back."""
    with warmshelf.connect(daemon.address) as shelf:
        before_bytes = shelf.capacity().free_bytes
        for artifact_id in (ADAPTER_ID, TENSORS_ADAPTER_ID):
            shelf.evict(artifact_id)
        evicted_bytes = shelf.capacity().free_bytes - before_bytes
    say("evict", f"both IDs, which gives back {megabytes(evicted_bytes)}; they stay known")
    return evicted_bytes


def _arena_bytes(arena: Path) -> int:
    """Return the memory that the files of the arena take."""
    return sum(file.stat().st_blocks * 512 for file in arena.rglob("*") if file.is_file())


def _ways(daemon: Daemon) -> list[tuple[str, str, list[str]]]:
    """Name the four workers, say how each must get its bytes and what it is told.

    Who comes over TCP may be on another host, so it does not look for the arena.
    """
    mapped = ("mapped", [daemon.address, ARTIFACT_ID])
    streamed = ("streamed", [daemon.tcp_address, ARTIFACT_ID])
    return [(f"worker {number}", *way) for number, way in enumerate((mapped, mapped, streamed, mapped), 1)]


@dataclass
class _Worker:
    """A worker process and what it has told."""

    name: str
    wanted_transport: str
    process: subprocess.Popen[str]
    told: dict[str, Any] = field(default_factory=dict)
    adapters: list[dict[str, Any]] = field(default_factory=list)

    def acquire(self) -> None:
        """Wait until it is up, let it acquire the model, then answer."""
        self.ask("")
        self.told |= self.ask("acquire")
        self.told |= self.ask("answer")
        self._show(ARTIFACT_ID, self.told)

    def adapt(self, adapter_id: str) -> None:
        """Let it acquire an adapter and answer with that."""
        told = self.ask(f"adapt {adapter_id}")
        self.adapters.append(told)
        self._show(adapter_id, told)

    def finish(self) -> WorkerFacts:
        """Let it answer again, measure its memory, and return all that it told."""
        after, adapted_after = self.ask("answer")["text"], self.ask(f"answer {ADAPTER_ID}")["text"]
        memory = self.ask("memory")
        # What is not mapped from the arena is its own, whatever kind of memory holds it.
        own = memory["own_bytes"] + (memory["shared_bytes"] if self.told["transport"] != "mapped" else 0)
        return WorkerFacts(
            **self.told,
            wanted_transport=self.wanted_transport,
            adapters=tuple(AdapterFacts(**told) for told in self.adapters),
            text_after=after,
            adapter_text_after=adapted_after,
            own_bytes=own,
        )

    def _show(self, artifact_id: str, told: dict[str, Any]) -> None:
        say(self.name, f"{artifact_id} {told['transport']} in {milliseconds(told['seconds'])}: {told['text']}")

    def ask(self, command: str) -> dict[str, Any]:
        """Send one command, return its answer; an empty one waits for the worker to be up."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the worker was started without pipes")
        if command:
            print(command, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended before it answered {command!r}: see its error above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def _worker(folder: Path, name: str, wanted_transport: str, arguments: list[str]) -> Iterator[_Worker]:
    """Start a worker whose temporary files lie in the folder, and end it."""
    command = tied("examples.demo_worker", *arguments)
    environment = {**OFFLINE, "TMPDIR": str(folder)}
    # A session of its own: Ctrl-C reaches only us, and we end it in order.
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield _Worker(name, wanted_transport, process)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=WORKER_END_SECONDS_MAX)  # closes its input, which ends it
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    sys.exit(main())

"""Shows warmshelf with a real model, real processes and a real crash.

    make demo            or: python -m examples.demo [--json FILE]

A daemon loads SmolLM2-135M once. Workers acquire it by ID, two by mapping and one as if
it were on another host, and answer a question exactly as the model on disk does.
Then the daemon is killed and the model's file moved away: the restarted daemon still has
the weights, and one more worker gets them at once. Exits 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

import warmshelf
from examples.daemon import Daemon, own_daemon
from examples.demo_model import MODEL_NAME, OFFLINE, model_directory, tensors_file
from examples.demo_report import CAPTION, Facts, Peers, WorkerFacts, table

ARTIFACT_ID = f"demo/{MODEL_NAME}"
BUDGET = "1GiB"
WORKER_END_SECONDS_MAX = 10.0
"""Longest wait for a worker whose input has ended."""

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demo; return its exit status."""
    parser = argparse.ArgumentParser(prog="demo", description="warmshelf with a real model, processes and a crash")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found to FILE")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a memory file system for the arena")
    parser.add_argument("--cache", type=Path, default=Path("build/demo"), help="where the model is kept")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    try:
        facts = _run(arguments.cache.resolve(), arguments.memory)
    except KeyboardInterrupt:
        return 130
    console.print()
    console.print(table(facts))
    console.print(CAPTION, style="dim")
    faults = list(facts.faults())
    if arguments.json:
        arguments.json.write_text(json.dumps({**asdict(facts), "faults": faults}, indent=2))
    for fault in faults:
        console.print(f"differs: {fault}", style="bold red")
    return 1 if faults else 0


def _leave(number: int, _frame: object) -> NoReturn:
    """Turn a signal into an exception, so that everything started is ended."""
    sys.exit(128 + number)


def _run(cache: Path, memory: Path) -> Facts:
    made = (cache / MODEL_NAME).exists()
    _say("model", f"{MODEL_NAME}, {'kept in' if made else 'made once, which takes half a minute, in'} {cache}")
    model = model_directory(cache)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=cache)))
        peers = _peers(folder, model, tensors_file(cache))
        _say("from disk", peers.text)
        source = _linked(model, folder / "model")
        daemon = stack.enter_context(own_daemon(sources=folder, budget=BUDGET, arena_parent=memory))
        start_seconds = daemon.start()
        _say("daemon", f"ready in {start_seconds:.2f} s, {daemon.address} and {daemon.tcp_address}")
        load_seconds = _load(daemon, source)
        workers = [stack.enter_context(_worker(folder, *way)) for way in _ways(daemon)]
        for worker in workers[:-1]:
            worker.acquire()
        daemon.kill()
        source.rename(folder / "moved-away")
        _say("crash", "the daemon is killed with SIGKILL, its source is moved away")
        restart_seconds = daemon.start()
        _say("daemon", f"ready again in {restart_seconds:.2f} s")
        workers[-1].acquire()
        found = tuple(worker.finish() for worker in workers)
        return Facts(peers, start_seconds, load_seconds, restart_seconds, _arena_bytes(daemon.arena), found)


def _say(who: str, what: str) -> None:
    console.print(f"[bold]{who:>10}[/bold]  ", end="")
    console.print(what, markup=False)


def _peers(folder: Path, model: Path, tensors: Path) -> Peers:
    command = [sys.executable, "-m", "examples.demo_peers", str(model), str(tensors)]
    environment = {**OFFLINE, "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the peers failed:\n{done.stderr}")
    return Peers(**json.loads(done.stdout.splitlines()[-1]))


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
    _say("load", f"{ARTIFACT_ID} in {seconds:.2f} s; from here on the ID is enough")
    return seconds


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

    def acquire(self) -> None:
        """Wait until it is up, let it acquire the model, then answer."""
        self.ask("")
        self.told |= self.ask("acquire")
        self.told |= self.ask("answer")
        _say(self.name, f"{self.told['transport']} in {self.told['seconds'] * 1000:.1f} ms: {self.told['text']}")

    def finish(self) -> WorkerFacts:
        """Let it answer again, measure its memory, and return all that it told."""
        after = self.ask("answer")["text"]
        memory = self.ask("memory")
        # What is not mapped from the arena is its own, whatever kind of memory holds it.
        own = memory["own_bytes"] + (memory["shared_bytes"] if self.told["transport"] != "mapped" else 0)
        return WorkerFacts(self.wanted_transport, **self.told, text_after=after, own_bytes=own)

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
    command = [sys.executable, "-m", "examples.demo_worker", *arguments]
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

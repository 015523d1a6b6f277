"""How the demo shows what it found: lines while it runs, a table and a caption at the end.

Fits 80 columns. Measures nothing and starts nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.demo_facts import Acquired, Facts, PeerFacts

NONE = "—"
"""Shown where somebody has no such way."""

COLUMNS = ("warmshelf", "safetensors\nmapped", "safetensors\ncopied", "tensorizer\n(copies)")

CAPTION = (
    "All files lie in the page cache. Times of warmshelf are of one try, those of the others the best of three, with "
    f"1, 2 and 4 threads. {NONE}: has no such way.\n"
    "Mapped times touch nothing, neither warmshelf's nor those of safetensors, whose load_file maps the file. Every "
    "byte touched: with one read of all bytes. A copy (load_file and a clone of every tensor; tensorizer always) has "
    "touched them by then.\n"
    "Mapped workers of safetensors share the page cache, so their memory is 1.0x for any number too; but that sharing "
    "exists only for a local file in the page cache. Warmshelf's is the arena; the page cache of the file, which it "
    "does not need, comes on top while the kernel keeps it.\n"
    "In peft: until the adapter is in the model, best of three; for safetensors by PeftModel.from_pretrained. Most of "
    "it is peft's work on the model, which warmshelf does not spare.\n"
    "Memory is the pages that the weights take. The worker that streams over TCP stands for one on another host, where "
    "its copies would lie: one for each form of the adapter."
)

console = Console(highlight=False)


def say(who: str, what: str) -> None:
    """Show one line of the run; if it is long it goes on below itself."""
    begin, indent = f"{who:>10}  ", " " * 12
    wrapped = textwrap.wrap(
        what,
        console.width,
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    line = Text("\n".join(wrapped))
    line.stylize("bold", 0, len(begin))
    console.print(line, soft_wrap=True)


def show(facts: Facts) -> None:
    """Show table and caption."""
    console.print()
    console.print(_table(facts))
    console.print()
    console.print(Text(CAPTION, style="dim"))


def milliseconds(seconds: float) -> str:
    """Return a time as it is shown everywhere."""
    return f"{seconds * 1e3:,.1f} ms"


def megabytes(size_bytes: int) -> str:
    """Return a size as it is shown everywhere."""
    return f"{size_bytes / 1e6:,.0f} MB"


def _table(facts: Facts) -> Table:
    shown = Table(title="the same weights, in one run", title_justify="left", box=box.SIMPLE_HEAD)
    shown.show_edge, shown.padding = False, (0, 0, 0, 1)  # with more it would not fit
    shown.add_column("", no_wrap=True)
    for name in COLUMNS:
        shown.add_column(name, justify="right", no_wrap=True)
    peers = facts.peers
    sections = {
        f"the model, {megabytes(peers.model.tensor_bytes)}": _model_rows(facts),
        f"the adapter, {megabytes(peers.adapter.tensor_bytes)}": _adapter_rows(facts),
        "memory of": _memory_rows(facts),
    }
    for name, rows in sections.items():
        shown.add_row(name, style="bold")
        for label, *cells in rows:
            shown.add_row(f" {label}", *cells)
        shown.add_section()
    return shown


def _model_rows(facts: Facts) -> Iterator[tuple[str, ...]]:
    peer, last = facts.peers.model, facts.workers[-1]
    yield "first load (file cached)", milliseconds(facts.load_seconds), *_times(peer)
    for number, worker in enumerate(facts.workers[:-1], 1):
        yield from _worker_rows(f"worker {number}", worker, peer)
    yield "restart until ready", milliseconds(facts.restart_seconds), NONE, NONE, NONE
    yield "worker after restart", milliseconds(last.seconds), *_times(peer)


def _adapter_rows(facts: Facts) -> Iterator[tuple[str, ...]]:
    peer = facts.peers.adapter
    first, second, remote, restarted = (worker.adapters for worker in facts.workers)
    for label, use in zip(
        ("first load (file cached)", "the same as .tensors", "load after eviction"), first, strict=True
    ):
        yield label, milliseconds(use.seconds), *_times(peer)
    yield from _worker_rows("worker 2", second[0], peer)
    yield from _worker_rows("worker 3", remote[0], peer)
    yield "worker after restart", milliseconds(restarted[0].seconds), *_times(peer)
    best = min(use.model_seconds for use in first)  # of three tries, as the others'
    by_peft, by_tensorizer = peer.peft_model_seconds, peer.tensorizer_model_seconds
    yield "in peft", milliseconds(best), milliseconds(by_peft), NONE, milliseconds(by_tensorizer)


def _worker_rows(name: str, acquired: Acquired, peer: PeerFacts) -> Iterator[tuple[str, ...]]:
    if acquired.transport != "mapped":
        speed = peer.tensor_bytes / acquired.seconds / 1e9
        yield f"{name}: TCP, {speed:.2f} GB/s", milliseconds(acquired.seconds), NONE, NONE, NONE
        return
    yield f"{name}: mapped", milliseconds(acquired.seconds), *_times(peer)
    _, *copies = _times(peer)
    touched = milliseconds(peer.safetensors_mapped.touched_seconds)
    yield "  every byte touched", milliseconds(acquired.touched_seconds), touched, *copies


def _times(peer: PeerFacts) -> Iterator[str]:
    return (milliseconds(load.seconds) for load in peer.loads)


def _memory_rows(facts: Facts) -> Iterator[tuple[str, ...]]:
    count = len(facts.mapped)
    both = zip(facts.peers.model.loads, facts.peers.adapter.loads, strict=True)
    held = [model.held_bytes(count) + adapter.held_bytes(count) for model, adapter in both]
    yield f"{count} workers, mapped", *(_copies(facts, taken) for taken in (facts.mapped_bytes, *held))
    own_bytes = sum(worker.own_bytes for worker in facts.streamed)
    yield f"{len(facts.streamed)} worker, streamed", _copies(facts, own_bytes), NONE, NONE, NONE


def _copies(facts: Facts, held_bytes: int) -> str:
    return f"{megabytes(held_bytes)} {held_bytes / facts.weights_bytes:.1f}x"

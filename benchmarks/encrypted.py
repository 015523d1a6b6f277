"""How long a base takes from a cached, encrypted ``.tensors`` file, beside tensorizer's own decrypting load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import warmshelf
from benchmarks import ceiling, models
from benchmarks.context import Context, Stopwatch, memory_file_system
from benchmarks.report import Row, best, faster
from examples.daemon import Daemon

RATIO_AIM = 1.0
ARTIFACT_ID = "bench/encrypted"
KEY = bytes(range(32))
"""It keeps nothing secret."""


def run(context: Context) -> list[Row]:
    """Measure on huge pages where they may be mounted: on smaller ones page faults take a third of the time."""
    with _file(context) as file:
        size_bytes = file.stat().st_size
        with memory_file_system(2 * size_bytes + (512 << 20), huge=True) as directory:
            watch = _alternate(context, file, directory or Path("/dev/shm"))
    pages = "huge pages" if directory else "4 KiB pages"
    name = f"cold load of a cached, encrypted .tensors file, {size_bytes / 1e6:,.0f} MB, {pages}"
    return [faster("encrypted", name, watch.side("load"), best(watch.sides("tensorizer")), RATIO_AIM)]


@contextmanager
def _file(context: Context) -> Iterator[Path]:
    with context.safetensors("plain", context.sizes.encrypted_bytes) as plain:
        file = models.make_tensors(context.folder / "encrypted.tensors", plain, key=KEY)
    try:
        yield file
    finally:
        file.unlink()


def _alternate(context: Context, file: Path, directory: Path) -> Stopwatch:
    watch = Stopwatch()
    config = context.folder / "encrypted.toml"
    (context.folder / "encrypted.key").write_bytes(KEY)
    key = f'tensors_key = "file:{context.folder}/encrypted.key"'
    config.write_text(f'[[source]]\nprefix = "file://{context.folder}"\n{key}\n', encoding="utf-8")
    with (
        context.daemon(2 * file.stat().st_size, directory, options=("--config", str(config))) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        shelf.register(ARTIFACT_ID, file)
        _load(context, daemon, shelf, file, Stopwatch())  # warms up, does not count
        for _ in context.rounds():
            _load(context, daemon, shelf, file, watch)
            models.warm(file)
            for count in models.READER_COUNTS:
                read = partial(models.read_with_tensorizer, file, count, key=KEY)
                watch.call(f"tensorizer, readers: {count}", read)
    return watch


def _load(context: Context, daemon: Daemon, shelf: warmshelf.Shelf, file: Path, watch: Stopwatch) -> None:
    models.warm(file)
    ceiling.fetch_memory(daemon.arena.parent, context.sizes.encrypted_bytes)
    with watch.time("load"):
        for _ in shelf.load(ARTIFACT_ID):
            pass
    context.wait_quiet(daemon.pid)  # SHA-256 and digest come behind a base's READY
    shelf.evict(ARTIFACT_ID)

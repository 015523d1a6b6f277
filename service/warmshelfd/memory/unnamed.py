"""Files that have lost their name but may still be mapped: their bytes are taken until they are not.

Unlinking a mapped file frees nothing, so each is kept open here and asked for now
and then. Knows nothing of segments.
"""

from __future__ import annotations

import threading

from warmshelfd.memory.books import Books
from warmshelfd.memory.mapped_file import MappedFile

_PATIENCE_SECONDS = 0.05
"""Giving 4 KiB pages back takes 60 ms per GiB; who only asks for numbers does not wait longer than this."""


class UnnamedFiles:
    """The files without a name, each counted in the books until nobody maps it."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._lock = threading.Lock()  # guards the list; held for microseconds per file
        self._files: list[MappedFile] = []

    def add(self, file: MappedFile) -> None:
        """Take over a file that the books already count as unnamed; let it go at once if nobody maps it."""
        file.unmap()
        with self._lock:
            self._files.append(file)
        self._let_go(self._take_unused())

    def sweep(self) -> None:
        """Let those go that nobody maps any more. A large one may end a moment later, and counts until then."""
        unused = self._take_unused()
        if unused:
            thread = threading.Thread(target=self._let_go, args=(unused,), name="arena-sweep")
            thread.start()
            thread.join(_PATIENCE_SECONDS)

    def close(self) -> None:
        """Close all of them; their bytes end with their last mapping."""
        with self._lock:
            files, self._files = self._files, []
        self._let_go(files)

    def _take_unused(self) -> list[MappedFile]:
        with self._lock:
            unused = [file for file in self._files if file.unmap() and not file.is_used_elsewhere()]
            self._files = [file for file in self._files if file not in unused]
        return unused

    def _let_go(self, files: list[MappedFile]) -> None:
        for file in files:
            file.close()
            self._books.remove_unnamed(file.size_bytes)

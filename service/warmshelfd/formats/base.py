"""What a format is: it reads the headers of a source's files and says what tensors they hold.

A format never reads tensor data and never allocates what a header asks for
before it has checked it. It knows no source by name: it sees files through the
three methods of ``Files``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from warmshelf.types import AdapterInspection, ArtifactKind
from warmshelfd.domain.adapter_shapes import AdapterShapes
from warmshelfd.domain.extents import TensorEntry


class Files(Protocol):
    """The files of a source, as a format sees them."""

    def files(self) -> Mapping[str, int]:
        """Return sizes in bytes by name."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""


Range = tuple[str, int, int]
"""A part of one file: its name, where it begins, how many bytes it has."""


@runtime_checkable
class Ahead(Protocol):
    """Files that gain by knowing what will be read."""

    def expect(self, ranges: Iterable[Range]) -> None:
        """Take note of what will be read soon."""


def expect(files: Files, ranges: Iterable[Range]) -> None:
    """Tell files what will be read soon, if they want to know."""
    if isinstance(files, Ahead):
        files.expect(ranges)


@dataclass(frozen=True, slots=True)
class FormatLimits:
    """What a file may ask for. Each is checked before anything is allocated for it."""

    header_bytes_max: int = 128 << 20
    """Longest header; the largest public model's is 11 MB."""
    tensor_count_max: int = 1 << 20
    """Most tensors of one artifact; the largest public model has 91,000."""
    element_count_max: int = 1 << 48
    """Product of a tensor's dimensions, zeros left out: 2**47 bytes is all that a process can address."""
    rank_max: int = 8
    """Most dimensions of a tensor; torch's own layouts end at 8."""
    name_bytes_max: int = 512
    """Longest tensor name in UTF-8."""
    metadata_bytes_max: int = 1 << 20
    """Most bytes in free-form metadata."""
    index_bytes_max: int = 64 << 20
    """Longest weights index; 91,000 tensors take 10 MB."""
    small_file_bytes_max: int = 64 << 20
    """Longest file kept whole beside the tensors; a large tokenizer takes 34 MB."""
    small_files_bytes_max: int = 128 << 20
    """All of those together."""
    box_bytes_max: int = 4 << 20
    """Longest run of encrypted bytes under one MAC, held once per reading thread; writers make 2 MiB."""
    argon2_memory_bytes_max: int = 256 << 20
    """What deriving a key from a passphrase may take, half of the reserve; it is what tensorizer asks by default."""
    argon2_passes_max: int = 16
    """Passes over that memory: 16 over 256 MiB take five seconds; tensorizer's presets have 1 to 4."""


class Check(Protocol):
    """What a file says of one tensor's bytes, against which they are checked once they have been read."""

    @property
    def name(self) -> str:
        """The tensor's."""

    @property
    def prefix(self) -> bytes:
        """What is hashed before the bytes."""

    @property
    def sha256(self) -> bytes:
        """The SHA-256 of both."""

    def check_crc32(self, crc32: int, size: int) -> None:
        """Compare the CRC32, if the file has one, with that of the tensor's bytes, which are so many.

        Raises:
            DigestMismatch: it differs; names the tensor and both values.
        """

    def check_sha256(self, parts: Iterable[bytes | memoryview]) -> None:
        """Compare the SHA-256, which takes several times as long as reading.

        Raises:
            DigestMismatch: it differs; names the tensor and both values.
        """


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a key comes from a passphrase: Argon2id with these parameters."""

    passes: int
    memory_bytes: int
    salt: bytes


class Boxes(NamedTuple):
    """The boxes of one tensor, which are encrypted each for itself: nonces count up from the first."""

    nonce: bytes
    macs: bytes


@dataclass(frozen=True, slots=True)
class Encryption:
    """How a file's tensors are encrypted: as libsodium's secretboxes.

    Attributes:
        box_bytes: length of every box but a tensor's last.
        boxes: of each tensor, in the entries' order; without MACs where a tensor has no bytes.
        derivation: how the key was made, if it was made from a passphrase.
    """

    box_bytes: int
    boxes: Sequence[Boxes]
    derivation: Derivation | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """What the headers of an artifact's files told.

    Attributes:
        kind: base or adapter.
        format_name: such as ``safetensors``.
        file_names: the files that hold the tensors, in the order of ``file_index``.
        entries: every tensor, sorted by (file_index, offset_bytes, name).
        small_files: names of the files to keep byte for byte, sorted.
        index_files: names of the files that said which tensors there are and where.
        adapter: for adapters only; its number is given by the shelf.
        adapter_shapes: for adapters only; what it needs of its base.
        checks: one for each entry, if the format has hashes; else none.
        encryption: for encrypted files only, of which there is one; the rest is in the clear.
    """

    kind: ArtifactKind
    format_name: str
    file_names: tuple[str, ...]
    entries: tuple[TensorEntry, ...]
    small_files: tuple[str, ...] = ()
    index_files: tuple[str, ...] = ()
    adapter: AdapterInspection | None = None
    adapter_shapes: AdapterShapes | None = None
    checks: Iterable[Check] = ()
    encryption: Encryption | None = None

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every file whose change is a change of the artifact."""
        return (*self.file_names, *self.small_files, *self.index_files)


class Format(ABC):
    """Reads one file format."""

    name: str

    @abstractmethod
    def matches(self, files: Mapping[str, int]) -> bool:
        """Say by the files' names whether this format is meant."""

    @abstractmethod
    def inspect(self, files: Files, limits: FormatLimits) -> Inspected:
        """Read headers and config, check them, and say what they hold.

        Raises:
            MalformedArtifact: a header breaks its format; names the file and what is wrong.
            SourceTruncated: a file is shorter than its header says; carries both sizes.
            UnsupportedDtype: names tensor and dtype.
            SourceNotFound: a file that the index names is not there.
        """

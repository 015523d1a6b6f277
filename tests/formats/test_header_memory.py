"""What headers cost in memory and time, measured in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20

MEASURE = """
import sys
from warmshelf.errors import WarmshelfError
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.detect import detect
from warmshelfd.sources.file import FileOpener

def peak_bytes():
    # Not ru_maxrss: that begins with what the parent had.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

opener = FileOpener([sys.argv[1]])
before = peak_bytes()
try:
    with opener.open(sys.argv[1]) as source:
        outcome = str(len(detect(source, FormatLimits()).entries))
except WarmshelfError as error:
    outcome = error.reason
print(outcome, peak_bytes() - before)
"""


def measure(path: Path) -> tuple[str, int]:
    """Return what inspecting the source comes to, and by how many bytes it made the process grow."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    outcome, grown = done.stdout.split()
    return outcome, int(grown)


def write(path: Path, header: bytes, data_size: int = 0) -> int:
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + data_size)
    return path.stat().st_size


def nested_lists() -> bytes:
    return b'{"a":[' + b"[]," * (4 * MIB // 3) + b"[]]}"


def many_small_objects() -> bytes:
    return b'{"a":{"dtype":[' + b"{}," * (4 * MIB // 3) + b"{}]}}"


def metadata_of_escapes() -> bytes:
    return b'{"__metadata__":{"k":"' + b"\\n" * (2 * MIB) + b'"}}'


def metadata_of_tiny_pairs() -> bytes:
    return b'{"__metadata__":{' + b",".join(b'"%x":""' % i for i in range(400_000)) + b"}}"


def one_wide_character() -> bytes:
    return '{"\N{GRINNING FACE}":'.encode() + b" " * 4 * MIB + b"]"


def last_tensor_broken() -> bytes:
    good = b",".join(b'"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(60_000))
    return b"{" + good + b',"0":1}'


@pytest.mark.parametrize(
    "header",
    [
        nested_lists,
        many_small_objects,
        metadata_of_escapes,
        metadata_of_tiny_pairs,
        one_wide_character,
        last_tensor_broken,
    ],
    ids=lambda make: make.__name__,
)
def test_a_refused_header_costs_little_more_than_its_size(header: object, tmp_path: Path) -> None:
    """B20: at most twice the file and 16 MiB."""
    assert callable(header)
    size = write(tmp_path / "m.safetensors", header())
    outcome, grown = measure(tmp_path / "m.safetensors")
    assert outcome == "MALFORMED_ARTIFACT"
    assert grown <= 2 * size + 16 * MIB


def test_a_hostile_index_costs_little_more_than_its_size(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(b'{"metadata":[' + b"[]," * (4 * MIB // 3) + b'[]],"weight_map":{"a":"x"}}')
    outcome, grown = measure(tmp_path)
    assert outcome == "MALFORMED_ARTIFACT"
    assert grown <= 2 * index.stat().st_size + 16 * MIB


def test_two_hundred_thousand_tiny_tensors_are_read(tmp_path: Path) -> None:
    """B20: big but legal; what is kept of each tensor takes some 250 bytes."""
    names = {f"tensor.number.{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(200_000)}
    size = write(tmp_path / "m.safetensors", json.dumps(names, separators=(",", ":")).encode(), 200_000)
    outcome, grown = measure(tmp_path / "m.safetensors")
    assert outcome == "200000"
    assert grown <= 6 * size + 16 * MIB

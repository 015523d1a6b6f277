"""What the headers of `.tensors` files cost in memory, measured in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kit.tensors_file import TensorsFile, Written, tensors_file

MIB = 1 << 20

MEASURE = """
import sys
from warmshelf.errors import WarmshelfError
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.tensorizer import TensorizerFormat
from warmshelfd.sources.file import FileOpener

def peak_bytes():
    # Not ru_maxrss: that begins with what the parent had.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

opener = FileOpener([sys.argv[1]])
before = peak_bytes()
try:
    with opener.open(sys.argv[1]) as source:
        outcome = str(len(TensorizerFormat().inspect(source, FormatLimits()).entries))
except WarmshelfError as error:
    outcome = error.reason
print(outcome, peak_bytes() - before)
"""


@cache
def smallest() -> TensorsFile:
    return tensors_file([Written(b"%x" % i, b"|u1", (), b"x") for i in range(30_000)])


def smallest_that_there_can_be() -> tuple[bytes, str]:
    return smallest().content, "30000"


def a_shape_for_each_tensor() -> tuple[bytes, str]:
    shapes = ((0, 300 + i, 290, 291, 292, 293, 1, 1) for i in range(30_000))
    return tensors_file([Written(b"%x" % i, b"|u1", shape, b"") for i, shape in enumerate(shapes)]).content, "30000"


def cut_at_the_end() -> tuple[bytes, str]:
    return smallest().content[:-1], "SOURCE_TRUNCATED"


def broken_at_the_end() -> tuple[bytes, str]:
    return smallest().patched("header29999.hash_count", 0), "MALFORMED_ARTIFACT"


def index_of_zeros() -> tuple[bytes, str]:
    return tensors_file([], index_bytes=8 * MIB).patched("tensor_count", 1 << 20), "MALFORMED_ARTIFACT"


def index_of_gigabytes() -> tuple[bytes, str]:
    return tensors_file([]).patched("index_length", 8 << 30), "MALFORMED_ARTIFACT"


def header_of_a_gigabyte() -> tuple[bytes, str]:
    file = tensors_file([Written(b"w", b"|u1", (1,), b"x")])
    return file.patched("header0.length", 1 << 30), "MALFORMED_ARTIFACT"


def tensor_of_a_terabyte() -> tuple[bytes, str]:
    file = tensors_file([Written(b"w", b"|u1", (1 << 40,), b"")], version=5)
    return file.patched("row0.data_length", 1 << 40), "SOURCE_TRUNCATED"


@pytest.mark.parametrize(
    "make",
    [
        smallest_that_there_can_be,
        a_shape_for_each_tensor,
        cut_at_the_end,
        broken_at_the_end,
        index_of_zeros,
        index_of_gigabytes,
        header_of_a_gigabyte,
        tensor_of_a_terabyte,
    ],
    ids=lambda make: make.__name__,
)
def test_headers_cost_little_more_than_their_file(make: Callable[[], tuple[bytes, str]], tmp_path: Path) -> None:
    """B20: at most twice the file and 16 MiB, whether it is refused or read."""
    content, expected = make()
    path = tmp_path / "m.tensors"
    path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    outcome, grown = done.stdout.split()
    assert outcome == expected
    assert int(grown) <= 2 * len(content) + 16 * MIB

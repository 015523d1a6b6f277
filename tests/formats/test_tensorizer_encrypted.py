"""Encrypted `.tensors` files beside the library: what it reads, we read the same; what it refuses, we refuse."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorizer import DecryptionParams, EncryptionParams

from kit.encrypted import FAST, KEY_VARIABLE, raw, read_with_tensorizer, write_encrypted
from warmshelf.dtypes import DTYPES
from warmshelf.errors import WarmshelfError
from warmshelf.segment import Section
from warmshelfd.decrypting import Keys, nonce_of, plain_reads
from warmshelfd.formats.base import Boxes, FormatLimits, Inspected
from warmshelfd.formats.tensorizer import TensorizerFormat
from warmshelfd.memo import prepare
from warmshelfd.memory.filling import Filling
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.settings import SourceSettings

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

KEY = bytes(range(100, 132))
PASSPHRASE = b"open sesame"
BOX = 2 << 20

TORCH = {name: row.torch_name for name, row in DTYPES.items() if hasattr(torch, row.torch_name or "?")}


def read_ours(path: Path, secret: bytes, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Load as the daemon does: inspect, fill a segment by several threads, compare every hash."""
    monkeypatch.setitem(os.environ, KEY_VARIABLE, os.fsdecode(secret))
    keys = Keys([SourceSettings(prefix=f"file://{path.parent}", tensors_key=f"env:{KEY_VARIABLE}")])
    with FileOpener([str(path.parent)]).open(str(path)) as source:
        inspected = TensorizerFormat().inspect(source, FormatLimits())
        reads = plain_reads(source, inspected, keys)
        plan = prepare(inspected).plan
        with memoryview(bytearray(plan.data_end)) as view:

            def read(file_index: int, offset: int, part: memoryview) -> None:
                reads.read_into(inspected.file_names[file_index], offset, part)

            data = Section(4096, max(plan.data_end - 4096, 0))
            Filling(view, plan, data, lambda *_: None, read, lambda: False, lambda _: None).run(3)
            return checked(inspected, {s.name: bytes(view[s.offset_bytes : s.end_bytes]) for s in plan.tensors})


def checked(inspected: Inspected, found: Mapping[str, bytes]) -> dict[str, tuple[Any, ...]]:
    for check in inspected.checks:
        check.check_crc32(zlib.crc32(found[check.name]), len(found[check.name]))
        check.check_sha256([found[check.name]])
    return {e.name: (TORCH[e.dtype], unpacked(e.dtype, e.shape), found[e.name]) for e in inspected.entries}


def unpacked(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    packed = DTYPES[dtype].packed
    return (*shape[:-1], shape[-1] // packed) if shape and packed > 1 else shape


def theirs(path: Path, decryption: DecryptionParams) -> dict[str, tuple[Any, ...]]:
    found = read_with_tensorizer(path, decryption)
    return {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape), raw(t)) for name, t in found.items()}


def noise(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    kind = getattr(torch, TORCH[dtype])
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randint(
        0, 2 if kind is torch.bool else 256, (torch.Size(shape).numel() * kind.itemsize,), generator=generator
    )
    return flat.to(torch.uint8).view(kind).reshape(shape)


SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
SETS = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=9),
    st.tuples(st.sampled_from(sorted(TORCH)), SHAPES),
    min_size=1,
    max_size=6,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SETS, st.booleans(), st.integers(0, 99))
def test_what_the_library_reads_with_the_key_we_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensors: dict[str, Any], by_passphrase: bool, seed: int
) -> None:
    path = tmp_path / "m.tensors"
    state = {name: noise(dtype, shape, seed) for name, (dtype, shape) in tensors.items() if shape or dtype != "F4"}
    state["none"] = torch.empty(2, 0)
    encryption = EncryptionParams.from_string(PASSPHRASE, **FAST) if by_passphrase else EncryptionParams(KEY)
    write_encrypted(path, state, encryption)
    secret = PASSPHRASE if by_passphrase else KEY.hex().encode()
    decryption = DecryptionParams.from_string(PASSPHRASE) if by_passphrase else DecryptionParams.from_key(KEY)
    assert read_ours(path, secret, monkeypatch) == theirs(path, decryption)
    assert read_ours(path, encryption.key.hex().encode(), monkeypatch) == theirs(path, decryption)


@pytest.mark.parametrize("size", [BOX - 1, BOX, BOX + 1, 2 * BOX, 3 * BOX + 100, 35 * (1 << 20) + 9])
def test_tensors_of_every_number_of_boxes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    path = tmp_path / "m.tensors"
    state = {"before": noise("U8", (1001,), 1), "large": noise("U8", (size,), 2), "behind": noise("F64", (77,), 3)}
    write_encrypted(path, state, EncryptionParams(KEY))
    expected = {name: raw(tensor) for name, tensor in state.items()}
    found = read_ours(path, KEY.hex().encode(), monkeypatch)
    assert {name: data for name, (_, _, data) in found.items()} == expected


def test_libsodium_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, warmshelfd.app; assert not {'nacl', 'torch', 'tensorizer'} & sys.modules.keys()"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)


def test_nonces_count_up_with_little_endian_carry() -> None:
    assert nonce_of(Boxes(b"\xff" + bytes(23), b""), 0) == b"\xff" + bytes(23)
    assert nonce_of(Boxes(b"\xff" + bytes(23), b""), 1) == b"\0\1" + bytes(22)
    assert nonce_of(Boxes(b"\xff" * 24, b""), 1) == bytes(24)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "m.tensors"
    state = {"aa": noise("BF16", (40,), 1), "bb": noise("F32", (5, 2), 2), "c": noise("I64", (), 3)}
    write_encrypted(path, state, EncryptionParams.from_string(PASSPHRASE, **FAST))
    return path.read_bytes()


INDEX = slice(73, 73 + 110)
"""The rows of the three tensors."""

BLOCKS = 73 + (256 << 10)
"""Where the headers and the data begin."""


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_the_library_refuses_we_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: bytes, data: st.DataObject
) -> None:
    """B19: one changed bit anywhere, or a cut; a typed error, or the same tensors as the library's."""
    places = st.one_of(st.integers(0, INDEX.stop), st.integers(BLOCKS, len(good) - 1))
    content = bytearray(good)
    if data.draw(st.booleans()):
        content[data.draw(places)] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(places) :]
    path = tmp_path / "m.tensors"
    path.write_bytes(bytes(content))
    try:
        ours = read_ours(path, PASSPHRASE, monkeypatch)
    except WarmshelfError:
        return
    assert ours == theirs(path, DecryptionParams.from_string(PASSPHRASE))


def test_every_byte_of_data_and_every_mac_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: bytes) -> None:
    path = tmp_path / "m.tensors"
    size = len(good) - BLOCKS - 8
    accepted = []
    for at in range(BLOCKS, BLOCKS + size, 5):
        content = bytearray(good)
        content[at] ^= 0x10
        path.write_bytes(bytes(content))
        try:
            read_ours(path, PASSPHRASE, monkeypatch)
            accepted.append(at)
        except WarmshelfError:
            pass
    assert accepted == []

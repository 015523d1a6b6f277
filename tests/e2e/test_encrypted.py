"""Encrypted `.tensors` files, written by the tensorizer library itself, through the daemon."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from tensorizer import EncryptionParams

import warmshelf.torch
from kit.encrypted import FAST, KEY_VARIABLE, raw, source_config, write_encrypted
from kit.processes import Daemon, eventually
from kit.scrape import HTTP, pages_of
from warmshelf import ArtifactState, errors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

KEY = bytes(range(200, 232))
PASSPHRASE = "a quiet canary in the mine"
BUDGET = ("--budget", "256MiB")


def state_of(seed: int, size: int = (5 << 20) + 77) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "embed.weight": torch.randn(3 << 19).to(torch.bfloat16),  # one box and a half
        "large": torch.randint(0, 256, (size,), dtype=torch.uint8),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.empty(0, 4),
        "odd": torch.arange(33, dtype=torch.uint8),
    }


def start(daemon: Daemon, key: str | bytes | None, *options: str, more: str = "") -> Daemon:
    environ = {} if key is None else {KEY_VARIABLE: os.fsdecode(key)}
    config = source_config(daemon.root / "daemon.toml", daemon.models, more=more)
    return daemon.start(*BUDGET, *config, *options, env=environ)


def assert_acquired(shelf: warmshelf.Shelf, artifact_id: str, state: dict[str, torch.Tensor]) -> None:
    with shelf.acquire(artifact_id, timeout=30) as lease:
        tensors = warmshelf.torch.tensors(lease)
        assert tensors.keys() == state.keys()
        for name, tensor in state.items():
            assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape)
            assert raw(tensors[name]) == raw(tensor)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("secret", [KEY.hex(), KEY.hex().upper() + "\n", PASSPHRASE])
def test_an_encrypted_file_is_acquired_bit_for_bit_evicted_and_loaded_again(
    daemon: Daemon, models: Path, secret: str
) -> None:
    state = state_of(1, (40 << 20) + 77)  # more than one part of the load
    encryption = EncryptionParams(KEY) if secret != PASSPHRASE else EncryptionParams.from_string(PASSPHRASE, **FAST)
    write_encrypted(models / "a.tensors", state, encryption)
    start(daemon, secret)
    with daemon.connect() as shelf:
        shelf.register("a", f"file://{models}/a.tensors")
        assert_acquired(shelf, "a", state)
        eventually(lambda: shelf.get("a").digest != "", "hashes are compared and the digest is known")
        shelf.verify("a")
        shelf.evict("a")
        assert_acquired(shelf, "a", state)


def test_a_raw_key_in_a_file_may_end_like_a_line(daemon: Daemon, models: Path) -> None:
    state = {"w": torch.arange(100)}
    key = bytes(30) + b"\r\n"
    (daemon.root / "key").write_bytes(key)
    write_encrypted(models / "a.tensors", state, EncryptionParams(key))
    daemon.start(*BUDGET, *source_config(daemon.root / "daemon.toml", models, f"file:{daemon.root}/key"))
    with daemon.connect() as shelf:
        shelf.register("a", f"file://{models}/a.tensors")
        assert_acquired(shelf, "a", state)


def test_an_encrypted_adapter_is_acquired_with_its_config(daemon: Daemon, models: Path) -> None:
    prefix = "base_model.model.q_proj"
    state = {f"{prefix}.lora_A.weight": torch.randn(4, 16), f"{prefix}.lora_B.weight": torch.randn(16, 4)}
    (models / "lora").mkdir()
    config = b'{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}'
    (models / "lora" / "adapter_config.json").write_bytes(config)
    write_encrypted(models / "lora" / "adapter_model.tensors", state, EncryptionParams(KEY))
    start(daemon, KEY.hex())
    with daemon.connect() as shelf:
        shelf.register("lora", f"file://{models}/lora")
        assert_acquired(shelf, "lora", state)
        with shelf.acquire("lora") as lease:
            assert lease.config_json == config


def test_a_digest_does_not_depend_on_encryption(daemon: Daemon, models: Path) -> None:
    """Equal content is held once, however it was kept; the digest is that of the plain bytes."""
    from safetensors.torch import save_file  # noqa: PLC0415

    state = state_of(2)
    write_encrypted(models / "a.tensors", state, EncryptionParams(KEY))
    save_file(state, models / "b.safetensors")
    start(daemon, KEY.hex())
    with daemon.connect() as shelf:
        for name, file in (("a", "a.tensors"), ("b", "b.safetensors")):
            shelf.register(name, f"file://{models}/{file}")
            shelf.acquire(name, timeout=30).release()
        eventually(lambda: len(daemon.segments()) == 1, "held once")
        assert shelf.get("a").digest == shelf.get("b").digest != ""


def test_a_copy_under_another_fingerprint_is_known_by_its_digest(daemon: Daemon, models: Path) -> None:
    state = state_of(3)
    write_encrypted(models / "a.tensors", state, EncryptionParams(KEY))
    start(daemon, KEY.hex())
    with daemon.connect() as shelf:
        uri = f"file://{models}/a.tensors"
        shelf.register("a", uri)
        shelf.acquire("a", timeout=30).release()
        eventually(lambda: shelf.get("a").digest != "", "the digest is known")
        write_encrypted(models / "a.tensors", state, EncryptionParams(KEY))  # other nonces, the same content
        assert shelf.register("a", uri).generation == 1
        write_encrypted(models / "a.tensors", state_of(4), EncryptionParams(KEY))
        with pytest.raises(errors.SourceChanged):
            shelf.register("a", uri)


class Setting:
    """A daemon whose key does not open the file."""

    def __init__(self, key: str | None, error: type[errors.WarmshelfError], says: str) -> None:
        self.key, self.error, self.says = key, error, says


@pytest.mark.parametrize(
    "setting",
    [
        Setting(None, errors.KeyMissing, "TENSORS_KEY"),
        Setting(bytes(32).hex(), errors.DecryptionFailed, "another key"),
        Setting("too-short-for-a-key", errors.DecryptionFailed, "no passphrase"),
        Setting("", errors.DecryptionFailed, "no passphrase"),
    ],
    ids=["no key", "another key", "a passphrase", "an empty key"],
)
def test_without_the_right_key_registration_is_refused(daemon: Daemon, models: Path, setting: Setting) -> None:
    write_encrypted(models / "a.tensors", state_of(1), EncryptionParams(KEY))
    start(daemon, setting.key)
    with daemon.connect() as shelf:
        with pytest.raises(setting.error, match=setting.says):
            shelf.register("a", f"file://{models}/a.tensors")
        assert list(shelf.list()) == []
        assert daemon.segments() == []


def test_a_file_outside_every_prefix_with_a_key_has_none(daemon: Daemon, models: Path) -> None:
    write_encrypted(models / "a.tensors", state_of(1), EncryptionParams(KEY))
    (models / "other").mkdir()
    config = source_config(daemon.root / "daemon.toml", models / "other")
    daemon.start(*BUDGET, *config, env={KEY_VARIABLE: KEY.hex()})
    with daemon.connect() as shelf, pytest.raises(errors.KeyMissing, match="no source settings have a tensors_key"):
        shelf.register("a", f"file://{models}/a.tensors")


def test_a_changed_byte_is_found_by_its_box_and_the_good_file_loads(daemon: Daemon, models: Path) -> None:
    """B19: nothing is cached, nothing is left, and the name of the tensor is in the error."""
    path = models / "a.tensors"
    state = state_of(1)
    write_encrypted(path, state, EncryptionParams(KEY))
    middle = path.stat().st_size // 2
    start(daemon, KEY.hex())
    with daemon.connect() as shelf:
        flip(path, middle)
        shelf.register("a", f"file://{path}")
        with pytest.raises(errors.DecryptionFailed, match=r"box \d+ of tensor 'large'"):
            shelf.acquire("a", timeout=30)
        assert shelf.get("a").state is ArtifactState.FAILED
        assert daemon.segments() == []
        eventually(lambda: daemon.arena_bytes() == 0, "every byte is given back")
        flip(path, middle)
        shelf.register("a", f"file://{path}", replace=True)
        assert_acquired(shelf, "a", state)


def test_two_tensors_that_were_exchanged_are_withdrawn(daemon: Daemon, models: Path) -> None:
    """The MACs are right, the header that goes with each is not: only the SHA-256 can tell."""
    path = models / "a.tensors"
    write_encrypted(path, {"a": torch.ones(64), "b": torch.zeros(64)}, EncryptionParams(KEY))
    whole = bytearray(path.read_bytes())
    # Behind each header's SHA-256: how it is encrypted, the data's length, the data.
    first, second = (found.end() + 32 for found in re.finditer(b"\x23\0\1\1\x20", whole))
    size = 8 + 2 + 8 + 58 + 8 + 256
    whole[first : first + size], whole[second : second + size] = (
        whole[second : second + size],
        whole[first : first + size],
    )
    path.write_bytes(bytes(whole))
    start(daemon, KEY.hex())
    with daemon.connect() as shelf:
        shelf.register("a", f"file://{path}")
        for _ in shelf.load("a"):
            pass
        eventually(lambda: shelf.get("a").state is ArtifactState.FAILED, "it is withdrawn")
        failure = shelf.get("a").failure
        assert failure is not None
        assert failure.reason == "DIGEST_MISMATCH"


def test_after_a_restart_the_key_is_needed_only_to_load(daemon: Daemon, models: Path) -> None:
    state = state_of(5)
    write_encrypted(models / "a.tensors", state, EncryptionParams(KEY))
    start(daemon, KEY.hex())
    with daemon.connect() as shelf:
        shelf.register("a", f"file://{models}/a.tensors")
        shelf.acquire("a", timeout=30).release()
    daemon.kill(signal.SIGKILL)
    start(daemon, None)
    with daemon.connect() as shelf:
        assert_acquired(shelf, "a", state)  # adopted: no source is read
        for _ in shelf.load("a"):
            pass
        shelf.register("a", f"file://{models}/a.tensors")  # nothing changed: nothing to decrypt
        shelf.evict("a")
        with pytest.raises(errors.KeyMissing):
            shelf.acquire("a", timeout=30)
        assert daemon.segments() == []
    daemon.kill(signal.SIGTERM)
    start(daemon, KEY.hex())
    with daemon.connect() as shelf:
        assert_acquired(shelf, "a", state)


def test_an_expensive_derivation_is_refused_before_it_is_tried(daemon: Daemon, models: Path) -> None:
    cost = {"opslimit": EncryptionParams.OpsLimit.MIN, "memlimit": 1 << 20}
    write_encrypted(models / "a.tensors", {"w": torch.ones(5)}, EncryptionParams.from_string(PASSPHRASE, **cost))
    start(daemon, PASSPHRASE, more='format_argon2_memory_bytes_max = "1023KiB"')
    with daemon.connect() as shelf, pytest.raises(errors.MalformedArtifact, match="1048576 bytes of memory for Argon2"):
        shelf.register("a", f"file://{models}/a.tensors")


@pytest.mark.parametrize("fault", ["none", "wrong key", "changed byte"])
def test_the_key_is_nowhere_to_be_seen(daemon: Daemon, models: Path, fault: str) -> None:
    """T27: not in the log, an error, a listing, a metric, the registry or the arena."""
    secret = PASSPHRASE
    path = models / "a.tensors"
    encryption = EncryptionParams.from_string(secret if fault != "wrong key" else "another", **FAST)
    write_encrypted(path, state_of(1), encryption)
    if fault == "changed byte":
        flip(path, path.stat().st_size // 2)
    start(daemon, secret, *HTTP, "--log-format", "json")
    seen = []
    with daemon.connect() as shelf:
        try:
            shelf.register("a", f"file://{path}")
            shelf.acquire("a", timeout=30).release()
        except errors.WarmshelfError as error:
            seen += [str(error), repr(error.details)]
        seen += [repr(list(shelf.list())), repr(shelf.leases()), pages_of(daemon).text()]
    daemon.kill(signal.SIGTERM)
    seen.append(daemon.log.read_text())
    kept = b"".join(file.read_bytes() for file in (daemon.registry, *daemon.arena.iterdir()) if file.is_file())
    for canary in (secret.encode(), encryption.key, encryption.key.hex().encode()):
        assert canary not in kept
        assert all(canary not in text.encode() for text in seen)
    assert len(seen) >= 4

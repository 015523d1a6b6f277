"""Directories of safetensors to ``.tensors`` files and back, through the tensorizer library.

``tensorize`` takes a model or a LoRA adapter as Hugging Face and PEFT save them and writes
``model.tensors`` or ``adapter_model.tensors`` with the same tensors: names, dtypes, shapes,
bits. ``untensorize`` goes the other way. Config and tokenizer files go along, byte for byte.
Encryption is tensorizer's own. Tensors go through memory one at a time, or, on the way
back, as many as one file of safetensors takes.

For the ranks of a parallel engine the whole model is given a name for each rank. vLLM
reads such a file as it reads safetensors: every rank takes its part of each tensor. Parts
that hold one rank's tensors alone can only be written by vLLM, whose layers they are.

Imports torch, safetensors and tensorizer when it is called, and knows no daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmshelf._weights import INDEX, STEMS, Weights, find_weights
from warmshelf.errors import (
    DecryptionFailed,
    DigestMismatch,
    InvalidRequest,
    KeyMissing,
    MalformedArtifact,
    UnsupportedDtype,
    UnsupportedFormat,
    WarmshelfError,
)
from warmshelf.export import SHARD_BYTES_MAX, check_target, new_directory
from warmshelf.types import ArtifactKind

LIBRARIES = frozenset({"tensorizer", "torch", "safetensors", "numpy"})
"""What both need: `pip install 'warmshelf[tensorizer]'`."""

RANKED = "model-rank-%03d.tensors"
"""How vLLM is told of files for each rank."""

_KEY_BYTES = 32
_KEY_FILE_BYTES_MAX = 64 << 10  # keys are far shorter, a wrong path may be a disk
_TENSORS, _SAFETENSORS = ".tensors", ".safetensors"
_FREE_FORM = {"format": "pt"}

Tell = Callable[[str, int, int], None]
"""Told the tensor that is done, how many bytes are, and how many there are in all."""


@dataclass(frozen=True)
class Secret:
    """What opens encrypted files: 32 bytes, or a passphrase from which they are derived."""

    value: bytes = field(repr=False)

    @property
    def key(self) -> bytes | None:
        """The 32 bytes, if it is those, raw or as 64 hexadecimal digits."""
        for raw in (self.value, self.passphrase):
            if len(raw) == _KEY_BYTES:
                return raw
        with contextlib.suppress(ValueError):
            raw = bytes.fromhex(self.passphrase.decode("ascii"))
            return raw if len(raw) == _KEY_BYTES else None
        return None

    @property
    def passphrase(self) -> bytes:
        """The same as text: without the line break at its end."""
        return self.value.removesuffix(b"\n").removesuffix(b"\r")


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        kind: a base or an adapter.
        file_names: the files of weights.
        tensor_count, tensor_bytes: what they hold.
        is_encrypted: whether a key is needed to read them.
    """

    kind: ArtifactKind
    file_names: tuple[str, ...]
    tensor_count: int
    tensor_bytes: int
    is_encrypted: bool = False


def read_secret_file(path: str | os.PathLike[str]) -> Secret:
    """Return what a key file holds.

    Raises:
        InvalidRequest: it cannot be read, is empty, or is too long. Never has what is in it.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            value = file.read(_KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(f"key file {name} cannot be read: {error.strerror}", path=name) from error
    secret = Secret(value)
    if len(value) > _KEY_FILE_BYTES_MAX or not secret.passphrase:
        raise InvalidRequest(f"key file {name} is empty, or longer than {_KEY_FILE_BYTES_MAX} bytes", path=name)
    return secret


def _silent(_name: str, _done_bytes: int, _total_bytes: int) -> None:
    pass


# --- to .tensors -------------------------------------------------------------


def tensorize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    secret: Secret | None = None,
    tensor_parallel: int = 1,
    tell: Tell = _silent,
) -> Converted:
    """Write a directory with the weights of another as ``.tensors``, whole or not at all.

    Raises:
        InvalidRequest: ``out`` is not empty or cannot be written, or an adapter is to be for several ranks.
        SourceNotFound, MalformedArtifact: there are no such weights, or they cannot be read.
        UnsupportedFormat: tensorizer cannot write them.
    """
    path = check_target(out)
    weights = find_weights(source, _SAFETENSORS)
    if tensor_parallel > 1 and weights.kind is ArtifactKind.ADAPTER:
        raise InvalidRequest("an adapter is one file for all ranks", tensor_parallel_count=tensor_parallel)
    ranked = [RANKED % rank for rank in range(tensor_parallel)] if tensor_parallel > 1 else []
    names = ranked or [STEMS[weights.kind] + _TENSORS]
    with new_directory(path) as partial, _telling_faults(weights):
        count, size = _write_tensors(os.path.join(partial, names[0]), weights, secret, tell)
        for name in names[1:]:
            _same_again(os.path.join(partial, names[0]), os.path.join(partial, name))
        _copy_small_files(weights, partial)
    return Converted(weights.kind, tuple(names), count, size, secret is not None)


def _same_again(path: str, other: str) -> None:
    """Give a file a second name; where the file system has no such thing, copy it."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def _write_tensors(target: str, weights: Weights, secret: Secret | None, tell: Tell) -> tuple[int, int]:
    from tensorizer import TensorSerializer  # noqa: PLC0415
    from tensorizer.serialization import TensorType  # noqa: PLC0415

    total = sum(os.stat(weights.path(name)).st_size for name in weights.files)
    serializer = TensorSerializer(target, encryption=_encryption(secret))
    names: set[str] = set()
    done = 0
    try:
        for name, tensor in _tensors_of(weights):
            if name in names:
                raise MalformedArtifact(f"two files hold a tensor {name!r}, and no index says which is meant")
            names.add(name)
            size = tensor.numel() * tensor.element_size()
            _check_readable(name, tensor)
            # tensorizer fails to encrypt what has no bytes, but writes the same from where none are.
            serializer.write_tensor(0, name, TensorType.STATE_DICT, tensor if size or not secret else tensor.to("meta"))
            done += size
            tell(name, done, total)
    except RuntimeError as error:
        if "overflow" not in str(error).lower():
            raise
        raise UnsupportedFormat(
            f"tensorizer keeps a file's index in 256 KiB, which the names of {len(names)} tensors do not fit into",
            tensor_count=len(names),
        ) from error
    finally:
        serializer.close()
    if not names:
        raise MalformedArtifact(f"{', '.join(weights.files)}: no tensors")
    return len(names), done


def _tensors_of(weights: Weights) -> Iterator[tuple[str, Any]]:
    """Yield every tensor, in the order of the files."""
    from safetensors import safe_open  # noqa: PLC0415

    for file in weights.files:
        with safe_open(weights.path(file), framework="pt") as opened:
            names = opened.offset_keys()
            wanted = weights.listed.get(file, names)
            missing = min(set(wanted) - set(names), default=None)
            if missing is not None:
                raise MalformedArtifact(f"{file}: has no tensor {missing!r}, which an index promises", file=file)
            for name in names:
                if name in wanted:
                    yield name, opened.get_tensor(name).clone()  # tensorizer encrypts in place: not in a mapped file


def _check_readable(name: str, tensor: Any) -> None:
    """Refuse what tensorizer writes and then cannot read: a file with an empty tensor whose dtype numpy lacks."""
    if tensor.numel():
        return
    try:
        tensor.numpy()
    except TypeError:
        raise UnsupportedFormat(
            f"tensor {name!r} is empty and of dtype {tensor.dtype}: tensorizer could not read the file",
            tensor=name,
            dtype=str(tensor.dtype),
        ) from None


def _encryption(secret: Secret | None) -> Any:
    from tensorizer import EncryptionParams  # noqa: PLC0415

    if secret is None:
        return None
    key = secret.key
    return EncryptionParams(key) if key is not None else EncryptionParams.from_string(secret.passphrase)


# --- from .tensors -----------------------------------------------------------


def untensorize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    secret: Secret | None = None,
    shard_bytes_max: int = SHARD_BYTES_MAX,
    tell: Tell = _silent,
) -> Converted:
    """Write a directory with the weights of a ``.tensors`` file as safetensors, whole or not at all.

    Every hash of the file is compared. A model is cut into files of at most ``shard_bytes_max``, with an index.

    Raises:
        InvalidRequest: ``out`` is not empty or cannot be written.
        SourceNotFound, MalformedArtifact, UnsupportedFormat: there is no such file, or it cannot be read.
        DigestMismatch: a tensor is not what its hashes say.
        KeyMissing, DecryptionFailed: it is encrypted, and there is no key or another one.
        UnsupportedDtype: safetensors lacks the dtype of a tensor.
    """
    path = check_target(out)
    weights = find_weights(source, _TENSORS)
    limit = shard_bytes_max if weights.kind is ArtifactKind.BASE else 0
    with new_directory(path) as partial, _telling_faults(weights):
        with _deserializer(weights.path(weights.files[0]), secret) as tensors:
            files, count, size = _write_shards(partial, tensors, STEMS[weights.kind], limit, tell)
        _copy_small_files(weights, partial)
    return Converted(weights.kind, files, count, size)


@contextlib.contextmanager
def _deserializer(path: str, secret: Secret | None) -> Iterator[Any]:
    """Open a file by whichever meaning of the secret opens it."""
    from tensorizer import CryptographyError  # noqa: PLC0415

    failure = ""
    for meaning in _meanings(secret):
        with contextlib.ExitStack() as stack:
            try:
                opened = _open(path, meaning, stack)
            except CryptographyError as error:
                failure = str(error)
                continue
            yield opened
            return
    name = os.path.basename(path)
    if secret is None:
        raise KeyMissing(f"{name} is encrypted, and no key was given", file=name)
    raise DecryptionFailed(f"{name} cannot be decrypted with this key: {failure}", file=name)


def _open(path: str, meaning: Any, stack: contextlib.ExitStack) -> Any:
    """Open a file and read one tensor, which shows whether this is the key."""
    from tensorizer import TensorDeserializer  # noqa: PLC0415

    opened = TensorDeserializer(path, device="cpu", lazy_load=True, verify_hash=True, encryption=meaning)
    stack.callback(opened.close)
    first = next(iter(opened.keys()), None)
    if first is not None:
        opened[first]
    return opened


def _meanings(secret: Secret | None) -> Iterator[Any]:
    from tensorizer import DecryptionParams  # noqa: PLC0415

    if secret is None:
        yield None
        return
    if secret.key is not None:
        yield DecryptionParams.from_key(secret.key)
    yield DecryptionParams.from_string(secret.passphrase)


def _write_shards(
    directory: str, tensors: Any, stem: str, shard_bytes_max: int, tell: Tell
) -> tuple[tuple[str, ...], int, int]:
    """Write the tensors file by file; return the files' names and what is in them."""
    from safetensors.torch import save_file  # noqa: PLC0415

    shards: list[list[str]] = []
    done = 0
    for shard in _shards(tensors, shard_bytes_max):
        shards.append(list(shard))
        try:
            save_file(shard, os.path.join(directory, str(len(shards))), metadata=_FREE_FORM)
        except KeyError as error:
            raise UnsupportedDtype(f"a tensor has dtype {error}, which safetensors lacks", dtype=str(error)) from error
        done += sum(t.numel() * t.element_size() for t in shard.values())
        tell(shards[-1][-1], done, tensors.total_tensor_bytes)
        shard.clear()
    count = len(shards)
    if not count:
        raise MalformedArtifact("the file holds no tensors")
    files = [f"{stem}-{i:05}-of-{count:05}{_SAFETENSORS}" for i in range(1, count + 1)]
    if count == 1:
        files = [stem + _SAFETENSORS]
    for number, file in enumerate(files, 1):
        os.rename(os.path.join(directory, str(number)), os.path.join(directory, file))
    if count > 1:
        _write_index(os.path.join(directory, INDEX), files, shards, done)
    return tuple(files), sum(map(len, shards)), done


def _shards(tensors: Any, bytes_max: int) -> Iterator[dict[str, Any]]:
    """Group tensors into files of at most so many bytes; 0: into one."""
    shard: dict[str, Any] = {}
    size = 0
    for name in list(tensors.keys()):
        tensor = tensors[name]
        if not hasattr(tensor, "detach"):
            raise UnsupportedFormat(f"{name!r} is a dict or list of tensors, for which safetensors has no names")
        tensor = tensor.detach()
        tensor_bytes = tensor.numel() * tensor.element_size()
        if bytes_max and shard and size + tensor_bytes > bytes_max:
            yield shard
            size = 0
        shard[str(name)] = tensor
        size += tensor_bytes
    if shard:
        yield shard


def _write_index(path: str, files: Sequence[str], shards: Sequence[Sequence[str]], total_bytes: int) -> None:
    weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    with open(path, "x", encoding="utf-8") as out:
        json.dump(index, out, ensure_ascii=False, indent=2)


# --- both ---------------------------------------------------------------------


def _copy_small_files(weights: Weights, directory: str) -> None:
    for name in weights.small_files:
        shutil.copyfile(weights.path(name), os.path.join(directory, name))


@contextlib.contextmanager
def _telling_faults(weights: Weights) -> Iterator[None]:
    """Say in our own errors what the libraries have found wrong."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from tensorizer.serialization import HashMismatchError  # noqa: PLC0415

    names = ", ".join(weights.files[:3])
    try:
        yield
    except WarmshelfError:
        raise
    except HashMismatchError as error:
        raise DigestMismatch(f"{names}: {error}", file=names) from error
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise MalformedArtifact(f"{names} cannot be converted: {error}", file=names) from error

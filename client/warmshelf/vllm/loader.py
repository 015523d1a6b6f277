"""``--load-format warmshelf``: a base's tensors, out of the shelf, under the names of its checkpoint.

vLLM fuses, slices and copies them to where it wants them, as it does with what it reads from
files; the lease ends with that copy. A weight reload leases anew. Knows no adapter.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

from vllm.model_executor.model_loader import BaseModelLoader, register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

import warmshelf.torch
from warmshelf._ahead import mapped_ahead
from warmshelf._engine_shelf import patiently, shelf_at
from warmshelf.client import Shelf
from warmshelf.errors import DeadlineExceeded, Fault, InvalidRequest, MalformedArtifact, WarmshelfError
from warmshelf.lease import Lease
from warmshelf.prepare import Marker, checked, read_marker
from warmshelf.vllm._options import LoaderOptions, loader_options

LOAD_FORMAT = "warmshelf"

_NAMES_SHOWN_MAX = 5
_log = logging.getLogger("vllm.warmshelf")  # below vLLM's own, whose level and form it has
_installed: list[type] = []
"""The loader, once vLLM has been told of it. Only ever appended to, while plugins load."""


def install() -> None:
    """Register the load format with vLLM, once."""
    if not _installed:
        register_model_loader(LOAD_FORMAT)(WarmshelfLoader)
        _installed.append(WarmshelfLoader)


class WarmshelfLoader(BaseModelLoader):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Loads a base from the shelf, or, if that is allowed and no daemon answers, from disk."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._options: LoaderOptions = loader_options(load_config.model_loader_extra_config)

    def download_model(self, model_config: Any) -> None:
        """Make the base resident, so that it can be loaded at once."""
        lease = self._lease(model_config)
        if lease is None:
            self._from_disk().download_model(model_config)
        else:
            lease.release()

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Load every parameter of the model, also of one that has been loaded before.

        Raises:
            MalformedArtifact: the artifact has nothing for some parameter; names it.
        """
        lease = self._lease(model_config)
        if lease is None:
            self._from_disk().load_weights(model, model_config)
            return
        with lease, mapped_ahead(lease):
            artifact = lease.artifact
            loaded = model.load_weights(iter(warmshelf.torch.tensors(lease).items()))
        if self._options.strict and model_config.quantization is None:
            check_whole(artifact.artifact_id, {name for name, _ in model.named_parameters()}, loaded)
        elif loaded is not None:
            self._from_disk().track_weights_loading(model, loaded, quantized=model_config.quantization is not None)
        _log.info("loaded %s, generation %d, %s", artifact.artifact_id, artifact.generation, lease.transport)

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """Yield every tensor, for vLLM's weight reload; leased until the last one was taken."""
        lease = self._lease(model_config)
        if lease is None:
            yield from self._from_disk().get_all_weights(model_config, model)
            return
        with lease, mapped_ahead(lease):
            yield from warmshelf.torch.tensors(lease).items()

    def _lease(self, model_config: Any) -> Lease | None:
        """Return a lease on the base, or None where disk shall take the shelf's place."""
        options, directory = self._options, model_config.model
        marker = read_marker(directory)
        artifact_id = artifact_of(options, marker, directory)
        shelf = shelf_at(options.address, options.arena, options.wait_seconds)
        try:
            lease = patiently(shelf, options.wait_seconds, lambda: _acquire(shelf, artifact_id, options))
        except WarmshelfError as error:
            if not (options.fallback and is_absence(error)):
                raise
            _log.warning("the shelf cannot give %s, loading the files of %s instead: %s", artifact_id, directory, error)
            return None
        return checked(lease, marker, directory)

    def _from_disk(self) -> Any:
        config = copy.copy(self.load_config)
        config.load_format, config.model_loader_extra_config = "auto", {}
        return DefaultModelLoader(config)


def _acquire(shelf: Shelf, artifact_id: str, options: LoaderOptions) -> Lease:
    return shelf.acquire(artifact_id, timeout=options.load_seconds, expected_digest=options.digest or None)


def artifact_of(options: LoaderOptions, marker: Marker | None, directory: str) -> str:
    """Return which base is meant.

    Raises:
        InvalidRequest: nobody says, or the directory was prepared from another.
    """
    named, prepared = options.artifact_id, marker.artifact_id if marker else ""
    if named and prepared and named != prepared:
        raise InvalidRequest(
            f"artifact_id says {named!r}, but {directory} was prepared from {prepared!r}", path=directory
        )
    if not (named or prepared):
        raise InvalidRequest(
            f"no artifact: {directory} was not made by 'warmshelf prepare-model', and "
            '--model-loader-extra-config \'{"artifact_id": "..."}\' says none',
            path=directory,
        )
    return named or prepared


def is_absence(error: WarmshelfError) -> bool:
    """Say whether the shelf cannot serve just now; what is wrong with the request or the artifact stays wrong."""
    return error.fault is Fault.DAEMON or isinstance(error, DeadlineExceeded)


def check_whole(artifact_id: str, wanted: set[str], loaded: set[str] | None) -> None:
    """Raise MalformedArtifact if a parameter was not loaded, or if nobody can tell."""
    if loaded is None:
        raise MalformedArtifact(
            f"{artifact_id!r}: this model of vLLM does not say which parameters it has loaded; "
            "--model-loader-extra-config '{\"strict\": false}' loads it all the same"
        )
    missing = sorted(wanted - loaded)
    if missing:
        shown = ", ".join(missing[:_NAMES_SHOWN_MAX]) + (" and others" if len(missing) > _NAMES_SHOWN_MAX else "")
        raise MalformedArtifact(
            f"{artifact_id!r} has nothing for {len(missing)} of the model's {len(wanted)} parameters: {shown}",
            artifact_id=artifact_id,
            missing_count=len(missing),
            parameter_count=len(wanted),
        )

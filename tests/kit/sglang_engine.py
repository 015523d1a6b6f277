"""What of SGLang runs without CUDA: its own registry of hooks, out of its wheel, and around it small classes that have
the methods which the plugin hooks. That the real ones have them too is shown by reading the wheel.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = "sglang.srt.plugins.hook_registry"
LAYER = "model.mtp.layers.0."


@cache
def wheel() -> ZipFile:
    """Return SGLang's wheel, fetched once."""
    found = subprocess.run(
        [ROOT / "scripts" / "sglang-wheel"],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ZipFile(found.stdout.strip())


@cache
def source(module: str) -> str:
    """Return the text of a module in the wheel."""
    names = (f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py"))
    return wheel().read(next(name for name in names if name in wheel().NameToInfo)).decode()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module))


# --- in the place of what needs CUDA -------------------------------------------


@dataclass(frozen=True)
class LoRARef:
    lora_name: str
    lora_path: str
    pinned: bool = False


class LoRARegistry:
    """Knows which adapters are loaded, by name."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()

    async def get_unregistered_loras(self, lora_name: set[str]) -> list[str]:
        return sorted(lora_name - self.loaded)


class LoRAManager:
    """Keeps what it was given; reads no files."""

    def __init__(self) -> None:
        self.given: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.paths: list[str] = []

    def create_lora_update_result(self, success: bool, error_message: str = "") -> Any:
        return SimpleNamespace(success=success, error_message=error_message)

    def _load_lora_adapter(self, lora_ref: LoRARef) -> Any:
        self.paths.append(lora_ref.lora_path)
        return self.create_lora_update_result(success=True)

    def _load_lora_adapter_from_tensors(
        self, lora_ref: LoRARef, tensors: Any, config_dict: Any, added_tokens_config: Any = None
    ) -> Any:
        self.given[lora_ref.lora_name] = tensors, config_dict
        return self.create_lora_update_result(success=True)


@dataclass
class TokenizerManager:
    """Loads an adapter that a request names by the path that it knows of it."""

    server_args: Any
    manager: LoRAManager
    lora_registry: LoRARegistry = field(default_factory=LoRARegistry)
    lora_ref_cache: dict[str, LoRARef] = field(default_factory=dict)

    async def _resolve_lora_path(self, obj: Any) -> None:
        names = {obj.lora_path} if isinstance(obj.lora_path, str) else {*obj.lora_path} - {None}
        for name in await self.lora_registry.get_unregistered_loras(names):
            if name not in self.lora_ref_cache:
                raise ValueError(f"Got LoRA adapter that has never been loaded: {name}")
            answer = self.manager._load_lora_adapter(self.lora_ref_cache[name])
            if not answer.success:
                raise ValueError(answer.error_message)
            self.lora_registry.loaded.add(name)


@dataclass
class DefaultModelLoader:
    """Yields one tensor that is in no file."""

    load_config: Any = field(default_factory=lambda: SimpleNamespace(draft_model_idx=None))

    def _get_weights_iterator(
        self,
        source: Any,
        *,
        resolved_source: Any = None,
        startup_prefetch_started: bool = False,
        startup_prefetch_active: bool = False,
    ) -> Any:
        return iter([("from.disk", source.model_or_path)])

    @classmethod
    def _filter_mtp_weights(cls, weights_iterator: Any, prefix: str, draft_model_idx: int) -> Any:
        for name, tensor in weights_iterator:
            yield f"{prefix}{draft_model_idx}.{name}", tensor


class Engine:
    """Takes tensors over as SGLang does: pickled, and unpickled by a rank."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.given: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def load_lora_adapter_from_tensors(
        self, lora_name: str, tensors: Any, config_dict: Any, load_format: str | None = None
    ) -> Any:
        payload = io.BytesIO()
        ForkingPickler(payload).dump(tensors)
        self.given[lora_name] = ForkingPickler.loads(payload.getvalue()), config_dict
        return SimpleNamespace(success=not self.refuses, error_message=self.refuses)


CLASSES = (
    ("sglang.srt.lora.lora_manager", LoRAManager),
    ("sglang.srt.lora.lora_registry", LoRARegistry),
    ("sglang.srt.lora.lora_registry", LoRARef),
    ("sglang.srt.managers.tokenizer_manager", TokenizerManager),
    ("sglang.srt.model_loader.loader", DefaultModelLoader),
)


def install(patch: pytest.MonkeyPatch) -> Any:
    """Make ``import sglang`` find these, in classes of their own, and return the registry of hooks."""
    for name in (REGISTRY, *(module for module, _ in CLASSES)):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            dotted = ".".join(parts[:end])
            if dotted not in sys.modules:
                patch.setitem(sys.modules, dotted, package := ModuleType(dotted))
                package.__path__ = []
                if end > 1:
                    setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], package)
    for module, kind in CLASSES:
        setattr(sys.modules[module], kind.__name__, type(kind.__name__, (kind,), dict(vars(kind))))
    exec(compile(source(REGISTRY), REGISTRY, "exec"), vars(sys.modules[REGISTRY]))
    return sys.modules[REGISTRY].HookRegistry  # type: ignore[attr-defined]

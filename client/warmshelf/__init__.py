"""warmshelf: model weights and LoRA adapters from host memory, at once.

``connect`` returns a ``Shelf``; ``Shelf.acquire`` returns a ``Lease``, from which
``warmshelf.torch.tensors`` and ``warmshelf.numpy.arrays`` make tensors and arrays,
``warmshelf.transformers.load_model`` a model and ``warmshelf.peft.load_adapter`` an adapter in
one. Those modules, and what they need, are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from warmshelf import errors
from warmshelf._security import Tls
from warmshelf.client import Shelf, connect
from warmshelf.errors import WarmshelfError
from warmshelf.layout import Layout, SegmentSpec, TensorSpec
from warmshelf.lease import Lease
from warmshelf.shard import LLAMA_RULES, Rule, Shard
from warmshelf.types import (
    AdapterInspection,
    Artifact,
    ArtifactKind,
    ArtifactSpec,
    ArtifactState,
    BaseCheck,
    Capabilities,
    Capacity,
    Change,
    ChangeKind,
    EngineOutcome,
    EngineVerdict,
    Failure,
    Inspection,
    LeaseInfo,
    LoadPhase,
    NewArtifact,
    Node,
    Progress,
    Registered,
    ResidencyList,
    Resident,
    Source,
)
from warmshelf.watch import Watch

__all__ = [
    "LLAMA_RULES",
    "AdapterInspection",
    "Artifact",
    "ArtifactKind",
    "ArtifactSpec",
    "ArtifactState",
    "BaseCheck",
    "Capabilities",
    "Capacity",
    "Change",
    "ChangeKind",
    "EngineOutcome",
    "EngineVerdict",
    "Failure",
    "Inspection",
    "Layout",
    "Lease",
    "LeaseInfo",
    "LoadPhase",
    "NewArtifact",
    "Node",
    "Progress",
    "Registered",
    "ResidencyList",
    "Resident",
    "Rule",
    "SegmentSpec",
    "Shard",
    "Shelf",
    "Source",
    "TensorSpec",
    "Tls",
    "WarmshelfError",
    "Watch",
    "connect",
    "errors",
]

_AT_FIRST_USE = ("numpy", "peft", "torch", "transformers")


def __getattr__(name: str) -> Any:
    if name in _AT_FIRST_USE:
        return importlib.import_module(f"warmshelf.{name}")
    raise AttributeError(f"module 'warmshelf' has no attribute {name!r}")

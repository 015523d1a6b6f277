"""The Helm chart, rendered by Helm's own code, and what is looked for in the result."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "warmshelf"
NAMESPACE = "inference"

Values = dict[str, Any]
Manifest = dict[str, Any]

NODE: Values = {"mode": "node"}
SIDECAR: Values = {"mode": "sidecar", "example": {"enabled": True}}
HUGE: Values = SIDECAR | {"arena": {"budget": "4Gi", "reserve": "1Gi", "medium": "HugePages-2Mi"}}
EVERYTHING: Values = {
    "mode": "node",
    "fullnameOverride": "shelf",
    "image": {"repository": "registry.local/warmshelf", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "seLinuxLevel": "s0:c10,c20",
    "arena": {"budget": "1Ti", "reserve": "2Gi", "sizeLimit": "1100Gi", "adapterFloor": "10Gi"},
    "resources": {"cpu": "1500m", "memory": "1104Gi"},
    "allowSource": ["file:///models", "s3://bucket/loras"],
    "preload": ["meta/llama-3.1-8b"],
    "declare": '["acme/x"]\nsource = "file:///models/x"\n',
    "config": 'load_threads = 8\n[[identity]]\nname = "engines"\nsubject = "*"\nroles = ["reader"]\n',
    "tcp": {"port": 50051, "secretName": "warmshelf-tls"},
    "fleet": {"registry": "rediss://cache:6379/0", "neighbours": ["10.0.0.0/8"]},
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "extraEnvFrom": [{"secretRef": {"name": "bucket"}}],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "node": {
        "workerNamespaces": ["team-a", "team-b"],
        "mountContext": "system_u:object_r:container_file_t:s0",
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-node-critical",
        "maxUnavailable": "10%",
        "purge": {"state": True},
    },
    "networkPolicy": {
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "tcpFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "inference"}}}],
        "egress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
    },
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "runbooks": "https://wiki.local/shelf"},
    "dashboards": {"enabled": True},
    "example": {"enabled": True, "gpus": 0},
}
PREPARED: Values = {"mode": "node", "node": {"prepare": False, "workerNamespaces": ["team-a"]}}
LOCKED: Values = SIDECAR | {"ipcLock": True, "pin": "require", "user": {"uid": 0, "gid": 0}}
WATCHED: Values = SIDECAR | {
    "networkPolicy": {"openPorts": [8000], "metricsFrom": [{"podSelector": {}}]},
    "podMonitor": {"enabled": True},
}

MATRIX = {
    "node": NODE,
    "sidecar": SIDECAR,
    "huge": HUGE,
    "everything": EVERYTHING,
    "prepared": PREPARED,
    "locked": LOCKED,
    "watched": WATCHED,
}
"""Values that use everything that the chart has, each way at least once."""


def render(values: Values, chart: Path = CHART) -> list[Manifest]:
    """Return the manifests; raises what Helm raises."""
    return copy.deepcopy(_render(json.dumps(values), chart))


@cache
def _render(values_json: str, chart: Path) -> list[Manifest]:
    values = json.loads(values_json)
    with helm_python.Chart.load(str(chart)) as loaded:
        files = loaded.render(values, name="warmshelf", namespace=NAMESPACE)
    texts = [text for path, text in sorted(files.items()) if not path.endswith(".txt")]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest]


def find(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the one manifest of a kind, and of a name if one is given."""
    found = [
        one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == (name or one["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} manifests of kind {kind} {name}"
    return found[0]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the name and the spec of each pod, also of those that others make."""
    for one in manifests:
        name = one["metadata"]["name"]
        if one["kind"] == "Pod":
            yield name, one["spec"]
        elif "template" in one.get("spec", {}):
            yield name, one["spec"]["template"]["spec"]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def daemon_of(pod: Manifest) -> Manifest:
    """Return the daemon's container of a pod."""
    return next(one for one in containers(pod) if one["name"] == "warmshelf")


def size_bytes(quantity: str) -> int:
    """Return the bytes of a quantity of Kubernetes."""
    units = {"Mi": 20, "Gi": 30, "Ti": 40}
    return int(quantity[:-2]) << units[quantity[-2:]]

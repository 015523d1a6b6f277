"""What docs/kubernetes.md says to write is what the chart and Kubernetes take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kit.chart import NODE, ROOT, containers, daemon_of, find, pods, render
from warmshelfd.config import parse

GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()


def block(name: str) -> Any:
    """Return the YAML between two marks of the guide."""
    text = GUIDE.split(f"<!-- tested: {name} -->")[1].split("<!-- tested until here -->")[0]
    return yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])


def test_the_values_for_node_mode_give_a_daemon_that_sees_the_models() -> None:
    manifests = render(block("node"))
    pod = find(manifests, "DaemonSet", "warmshelf")["spec"]["template"]["spec"]
    assert "/models" in {mount["mountPath"] for mount in daemon_of(pod)["volumeMounts"]}
    assert find(manifests, "PersistentVolumeClaim")["metadata"]["namespace"] == "inference"


def test_a_worker_as_in_the_guide_finds_what_the_chart_offers() -> None:
    worker = block("worker")
    kubernetes_validate.validate(worker, "1.29", strict=True)
    values = NODE | {"node": {"workerNamespaces": [worker["metadata"]["namespace"]]}}
    claim = find(render(values), "PersistentVolumeClaim")["metadata"]
    volume = worker["spec"]["volumes"][0]["persistentVolumeClaim"]
    assert (volume["claimName"], volume["readOnly"]) == (claim["name"], True)
    daemon = daemon_of(dict(pods(render(values)))["warmshelf"])
    address = containers(worker["spec"])[0]["env"][0]["value"]
    assert f"--listen={address}" in daemon["args"]
    assert worker["spec"]["securityContext"]["runAsUser"] == daemon["securityContext"]["runAsUser"]


def test_the_values_for_tcp_give_a_daemon_that_starts(tmp_path: Path) -> None:
    values = block("tcp")
    daemon = daemon_of(find(render(NODE | values), "DaemonSet", "warmshelf")["spec"]["template"]["spec"])
    config = tmp_path / "warmshelfd.toml"
    config.write_text(values["config"])
    arguments = [f"--config={config}" if one.startswith("--config") else one for one in daemon["args"]]
    settings, warnings = parse(arguments, {"HOME": "/nowhere"})
    assert warnings == []
    assert settings.certificate_files() is not None
    assert [role.value for role in settings.anonymous_roles] == ["reader"]


@pytest.mark.parametrize("value", ["arena.sizeLimit", "resources.memory"])
def test_what_the_guide_says_to_leave_empty_is_empty(value: str) -> None:
    part, name = value.split(".")
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "warmshelf" / "values.yaml").read_text())
    assert values[part][name] == ""

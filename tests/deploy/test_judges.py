"""What others' linters say of the Dockerfile and the manifests: nothing but what node mode cannot do without."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml

from kit import judges
from kit.chart import EVERYTHING, ROOT, render

KUBERNETES = ROOT / "deploy" / "kubernetes"

MOUNTING = ("'prepare-node'", "'unmount'")
"""The two containers that must be privileged: nothing less may mount on a node."""

PRIVILEGED = {"CKV_K8S_16", "CKV_K8S_20", "CKV_K8S_28", "CKV_K8S_37"}
YOURS = {"CKV_K8S_15", "CKV_K8S_43"}
"""Pull policy and digest: for who has a registry to say, with values of the chart."""

NO_POLICY = "CKV2_K8S_6"
"""No NetworkPolicy: the daemons have theirs; those of an example's pods are yours, and the purge listens nowhere."""

NO_PROBES = {"CKV_K8S_8", "CKV_K8S_9"}
"""A pod that has done its work and sleeps."""


def test_hadolint_has_nothing_to_say_of_the_dockerfile(tmp_path: Path) -> None:
    assert judges.hadolint(ROOT / "Dockerfile") == []
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    assert "DL3006" in judges.hadolint(bad)


def test_trivy_finds_only_what_mounts_on_the_node(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    found = judges.trivy(tmp_path, tmp_path / "cache")
    other = [one for one in found if not any(name in one[2] for name in MOUNTING)]
    assert {(file, rule) for file, rule, _ in other} == {
        (file, rule) for file in ("node.yaml", "node-purge.yaml") for rule in ("KSV023", "KSV105", "KSV106")
    }


def test_checkov_finds_only_what_mounts_on_the_node() -> None:
    found: dict[str, set[str]] = {}
    for rule, resource in judges.checkov(KUBERNETES):
        if rule == NO_POLICY:
            assert resource.startswith(("Pod.inference.", "Pod.warmshelf.warmshelf-purge")), resource
        else:
            found.setdefault(resource, set()).add(rule)
    assert found == {
        "DaemonSet.warmshelf.warmshelf": YOURS | PRIVILEGED,
        "DaemonSet.warmshelf.warmshelf-purge": YOURS | PRIVILEGED | NO_PROBES,
        "Deployment.inference.warmshelf-vllm": YOURS,
    }


def test_prometheus_operator_takes_its_resources() -> None:
    manifests = [one for one in render(EVERYTHING) if one["apiVersion"] == "monitoring.coreos.com/v1"]
    assert {one["kind"] for one in manifests} == {"PodMonitor", "PrometheusRule"}
    assert judges.custom_resource_faults(manifests) == []
    manifests[0]["spec"]["podMetricsEndpoints"][0]["port"] = 9464
    assert len(judges.custom_resource_faults(manifests)) == 1


def test_the_plain_manifests_are_the_chart_of_today(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "render-manifests"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
    copy = tmp_path / "scripts" / script.name
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    copy.parent.mkdir()
    shutil.copy(script, copy)
    with (tmp_path / "deploy" / "kubernetes" / "node.yaml").open("a") as file:
        file.write("---\n")
    changed = subprocess.run([sys.executable, copy, "--check"], capture_output=True, text=True, check=False)
    assert (changed.returncode, "node.yaml is not current" in changed.stdout) == (1, True)


def test_the_plain_manifests_are_what_kubernetes_takes_and_nothing_of_helm_is_left() -> None:
    for path in KUBERNETES.glob("*.yaml"):
        text = path.read_text()
        assert "helm.sh" not in text
        assert "managed-by" not in text
        for manifest in yaml.safe_load_all(text):
            if "monitoring" not in manifest["apiVersion"]:
                kubernetes_validate.validate(manifest, "1.29", strict=True)
                kubernetes_validate.validate(manifest, "1.37", strict=True)

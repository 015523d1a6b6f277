"""Pods with a sidecar pass the Restricted profile; node mode asks for more in one container that ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.chart import (
    EVERYTHING,
    HUGE,
    LOCKED,
    NODE,
    PREPARED,
    SIDECAR,
    WATCHED,
    Manifest,
    containers,
    daemon_of,
    pods,
    render,
)

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def faults(pod: Manifest) -> Iterator[str]:
    """Yield what the Restricted profile forbids: the list of Kubernetes' documentation, field by field."""
    if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    for volume in pod.get("volumes", []):
        if not VOLUMES & volume.keys():
            yield f"volume {volume['name']}"
    for one in containers(pod):
        yield from (f"{one['name']}: {fault}" for fault in _container_faults(one, pod.get("securityContext", {})))


def _container_faults(one: Manifest, of_pod: Manifest) -> Iterator[str]:
    mine = {**of_pod, **one.get("securityContext", {})}
    if mine.get("privileged"):
        yield "privileged"
    if mine.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if mine.get("runAsNonRoot") is not True or mine.get("runAsUser") == 0:
        yield "root"
    if mine.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield "seccomp"
    capabilities = mine.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities"
    if any("hostPort" in port for port in one.get("ports", [])):
        yield "host port"


@pytest.mark.parametrize("values", [SIDECAR, HUGE, WATCHED], ids=["sidecar", "huge", "watched"])
def test_sidecar_mode_is_restricted(values: Manifest) -> None:
    for name, pod in pods(render(values)):
        assert list(faults(pod)) == [], name


@pytest.mark.parametrize("values", [NODE | {"example": {"enabled": True}}, EVERYTHING], ids=["node", "everything"])
def test_workers_of_node_mode_are_restricted(values: Manifest) -> None:
    worker = next(pod for name, pod in pods(render(values)) if name.endswith("-vllm"))
    assert list(faults(worker)) == []


def test_in_node_mode_only_what_mounts_is_privileged() -> None:
    found = dict(pods(render(NODE)))
    assert set(faults(found["warmshelf"])) == {
        "volume warmshelf-node",
        *(f"prepare-node: {fault}" for fault in ("privileged", "allowPrivilegeEscalation", "root", "capabilities")),
    }


def test_on_a_prepared_node_only_its_directories_are_asked_for() -> None:
    found = dict(pods(render(PREPARED)))
    assert set(faults(found["warmshelf"])) == {"volume warmshelf-run", "volume warmshelf-state"}


def test_locking_any_amount_costs_the_profile_and_only_for_the_daemon() -> None:
    pod = dict(pods(render(LOCKED)))["warmshelf-vllm"]
    adding = [one["name"] for one in containers(pod) if one["securityContext"]["capabilities"].get("add")]
    assert adding == ["warmshelf"]
    assert daemon_of(pod)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


@pytest.mark.parametrize("values", [NODE, SIDECAR, EVERYTHING], ids=["node", "sidecar", "everything"])
def test_every_root_file_system_is_read_only_and_no_pod_talks_to_the_cluster(values: Manifest) -> None:
    for name, pod in pods(render(values)):
        assert pod["automountServiceAccountToken"] is False, name
        for one in containers(pod):
            assert one["securityContext"]["readOnlyRootFilesystem"] is True, f"{name}: {one['name']}"

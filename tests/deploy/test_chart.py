"""The chart for a matrix of values: Helm's strict lint, Kubernetes' own schemas, and what the daemon makes of it."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import helm_python
import kubernetes_validate
import pytest
import yaml

from kit.chart import (
    CHART,
    EVERYTHING,
    HUGE,
    MATRIX,
    NODE,
    SIDECAR,
    WATCHED,
    Manifest,
    Values,
    containers,
    daemon_of,
    find,
    pods,
    render,
    size_bytes,
)
from warmshelfd.config import parse

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
WARNING = 2

CASES = pytest.mark.parametrize("case", MATRIX)


@CASES
def test_lint_has_nothing_to_say(case: str) -> None:
    report = helm_python.lint(str(CHART), MATRIX[case], strict=True)
    assert [one for one in report["messages"] if one["severity"] >= WARNING] == []
    assert report["errors"] == []


@CASES
def test_every_manifest_is_what_kubernetes_takes_in_each_version(case: str) -> None:
    versions = VERSIONS if case in {"everything", "huge"} else (VERSIONS[0], VERSIONS[-1])
    for manifest in render(MATRIX[case]):
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            for version in versions:
                kubernetes_validate.validate(manifest, version, strict=True)


def test_a_wrong_field_would_be_seen() -> None:
    daemons = find(render(NODE), "DaemonSet", "warmshelf")
    daemons["spec"]["template"]["spec"]["containers"][0]["memory"] = "1Gi"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemons, VERSIONS[0], strict=True)


@CASES
def test_the_daemon_understands_its_arguments_and_its_budget_fits(case: str, tmp_path: Path) -> None:
    daemons = [daemon_of(pod) for _, pod in pods(render(MATRIX[case])) if _has_daemon(pod)]
    config = tmp_path / "warmshelfd.toml"
    config.write_text(MATRIX[case].get("config", ""))
    assert daemons
    for daemon in daemons:
        arguments = [f"--config={config}" if one.startswith("--config") else one for one in daemon["args"]]
        environ = {one["name"]: one.get("value") or filled_in(one["valueFrom"]) for one in daemon["env"]}
        settings, warnings = parse(arguments, {"HOME": "/nowhere", **environ})
        assert warnings == []
        limits = daemon["resources"]["limits"]
        room = size_bytes(limits.get("hugepages-2Mi", limits["memory"]))
        reserve = 0 if "hugepages-2Mi" in limits else settings.reserve_bytes
        assert settings.budget is not None
        assert settings.budget + reserve <= room
        assert settings.adapter_floor_bytes(settings.budget) <= settings.budget


def filled_in(origin: Values) -> str:
    """Return what Kubernetes puts in a field's place; a pod without the label has an empty one."""
    return {"spec.nodeName": "node-7", "status.podIP": "10.0.0.7"}.get(origin["fieldRef"]["fieldPath"], "")


def _has_daemon(pod: Manifest) -> bool:
    return any(one["name"] == "warmshelf" for one in containers(pod))


@CASES
def test_every_container_requests_what_it_may_use(case: str) -> None:
    for name, pod in pods(render(MATRIX[case])):
        for one in containers(pod):
            resources = one["resources"]
            assert resources["requests"] == resources["limits"], f"{name}: {one['name']}"
            assert {"cpu", "memory"} <= resources["limits"].keys()


@CASES
def test_every_mount_has_its_volume_and_every_volume_its_mount(case: str) -> None:
    for name, pod in pods(render(MATRIX[case])):
        mounted = {mount["name"] for one in containers(pod) for mount in one.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}, name


@CASES
def test_memory_volumes_are_bounded_and_fit_who_fills_them(case: str) -> None:
    for _, pod in pods(render(MATRIX[case])):
        volumes = {v["name"]: v["emptyDir"] for v in pod.get("volumes", []) if "medium" in v.get("emptyDir", {})}
        for one in containers(pod):
            writable = {m["name"] for m in one.get("volumeMounts", []) if not m.get("readOnly")}
            filled = [v for name, v in volumes.items() if name in writable]
            for medium, resource in (("Memory", "memory"), ("HugePages-2Mi", "hugepages-2Mi")):
                sizes = [size_bytes(v["sizeLimit"]) for v in filled if v["medium"] == medium]
                assert sum(sizes) <= size_bytes(one["resources"]["limits"].get(resource, "0Mi"))


@CASES
def test_workers_mount_the_arena_read_only_and_where_the_daemon_says_it_is(case: str) -> None:
    for name, pod in pods(render(MATRIX[case])):
        if "purge" in name:
            continue
        for one in containers(pod):
            mounts = [m for m in one.get("volumeMounts", []) if m["mountPath"].startswith("/run/warmshelf")]
            if one["name"] != "warmshelf":
                assert all(m.get("readOnly") for m in mounts), f"{name}: {one['name']}"
        workers = [one for one in containers(pod) if one["name"] in {"vllm", "worker", "prepare-model"}]
        for worker in workers:
            assert {m["mountPath"] for m in worker["volumeMounts"]} >= {"/run/warmshelf"}
            environ = {one["name"]: one["value"] for one in worker["env"]}
            assert environ["WARMSHELF_ADDRESS"] == "unix:///run/warmshelf/api.sock"


def test_huge_pages_take_no_memory_of_the_budget() -> None:
    pod = dict(pods(render(HUGE)))["warmshelf-vllm"]
    daemon = daemon_of(pod)
    assert daemon["resources"]["limits"]["memory"] == "1024Mi"
    assert daemon["resources"]["limits"]["hugepages-2Mi"] == "4096Mi"
    assert "--arena=/run/warmshelf-huge/arena" in daemon["args"]
    mounts = {m["mountPath"]: m for m in find_container(pod, "vllm")["volumeMounts"]}
    assert mounts["/run/warmshelf-huge"]["readOnly"]


def find_container(pod: Manifest, name: str) -> Manifest:
    return next(one for one in containers(pod) if one["name"] == name)


def test_the_sidecar_starts_first_stays_and_is_started_when_it_listens() -> None:
    pod = dict(pods(render(SIDECAR)))["warmshelf-vllm"]
    first = pod["initContainers"][0]
    assert (first["name"], first["restartPolicy"]) == ("warmshelf", "Always")
    assert {name: first[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")} == {
        "startup": "/startupz",
        "readiness": "/readyz",
        "liveness": "/livez",
    }


def test_a_node_never_has_two_daemons_and_each_namespace_gets_its_claim() -> None:
    manifests = render(EVERYTHING)
    assert find(manifests, "DaemonSet", "shelf")["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0
    for namespace in ("team-a", "team-b"):
        volume = find(manifests, "PersistentVolume", f"shelf-{namespace}")
        claims = [
            one for one in manifests if one["kind"].endswith("Claim") and one["metadata"]["namespace"] == namespace
        ]
        assert [one["spec"]["volumeName"] for one in claims] == [volume["metadata"]["name"]]
        assert volume["spec"]["claimRef"]["namespace"] == namespace
        assert volume["spec"]["claimRef"]["name"] == claims[0]["metadata"]["name"]
        assert volume["spec"]["hostPath"] == {"path": "/var/lib/warmshelf/workers/shelf", "type": "Directory"}
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_what_selects_pods_selects_those_with_a_daemon() -> None:
    for case, values in {"everything": EVERYTHING, "watched": WATCHED}.items():
        manifests = render(values)
        name = "shelf" if case == "everything" else "warmshelf-vllm"
        kind = "DaemonSet" if case == "everything" else "Deployment"
        labels = find(manifests, kind, name)["spec"]["template"]["metadata"]["labels"].items()
        assert find(manifests, "PodMonitor")["spec"]["selector"]["matchLabels"].items() <= labels
        assert find(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels


def test_in_node_mode_nobody_but_the_node_reaches_a_daemon_unless_named() -> None:
    policy = find(render(NODE), "NetworkPolicy")["spec"]
    assert (policy["policyTypes"], policy["ingress"]) == (["Ingress"], [])


def test_over_tcp_there_is_tls_from_a_secret_and_only_for_whom_the_policy_names() -> None:
    manifests = render(EVERYTHING)
    pod = find(manifests, "DaemonSet", "shelf")["spec"]["template"]["spec"]
    arguments = daemon_of(pod)["args"]
    assert "--listen=0.0.0.0:50051" in arguments
    mount = next(one for one in daemon_of(pod)["volumeMounts"] if one["name"] == "warmshelf-tls")
    files = [one.partition("=")[2] for one in arguments if one.startswith("--listen-")]
    assert files == [f"{mount['mountPath']}/{name}" for name in ("tls.crt", "tls.key", "ca.crt")]
    assert {"name": "warmshelf-tls", "secret": {"secretName": "warmshelf-tls"}} in pod["volumes"]
    rules = find(manifests, "NetworkPolicy")["spec"]["ingress"]
    assert [(rule["from"][0]["namespaceSelector"]["matchLabels"], rule["ports"][0]["port"]) for rule in rules] == [
        ({"kubernetes.io/metadata.name": "monitoring"}, "warmshelf-http"),
        ({"kubernetes.io/metadata.name": "inference"}, 50051),
    ]
    plain = daemon_of(find(render(NODE), "DaemonSet", "warmshelf")["spec"]["template"]["spec"])["args"]
    assert [one for one in plain if one.startswith("--listen")] == ["--listen=unix:///run/warmshelf/api.sock"]


def test_nodes_of_a_fleet_are_told_where_they_are_by_a_label_or_a_value() -> None:
    def environment(values: Values) -> dict[str, object]:
        name = values.get("fullnameOverride", "warmshelf")
        daemon = daemon_of(find(render(values), "DaemonSet", name)["spec"]["template"]["spec"])
        return {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in daemon["env"]}

    told = environment(EVERYTHING)
    assert told["WARMSHELF_NODE_ZONE"] == "metadata.labels['topology.kubernetes.io/zone']"
    assert told["WARMSHELF_NODE_NAME"] == "spec.nodeName"
    assert told["WARMSHELF_ADVERTISE"] == "status.podIP"
    fleet = EVERYTHING["fleet"]
    assert environment(EVERYTHING | {"fleet": {**fleet, "zone": "rack-3"}})["WARMSHELF_NODE_ZONE"] == "rack-3"
    assert "WARMSHELF_NODE_ZONE" not in environment(EVERYTHING | {"fleet": {**fleet, "zoneLabel": ""}})
    assert "WARMSHELF_NODE_NAME" not in environment(NODE)


def test_a_chart_of_yours_includes_the_sidecar(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "templates").mkdir(parents=True)
    shutil.copytree(CHART, mine / "charts" / "warmshelf")
    guide = (CHART.parents[2] / "docs" / "kubernetes.md").read_text().split("## Sidecar mode")[1]
    parts = [textwrap.dedent(part.split("```")[0]) for part in guide.split("```yaml\n")[1:4]]
    dependencies, values, template = parts
    head = yaml.safe_dump({"apiVersion": "v2", "name": "mine", "version": "1.0.0"})
    (mine / "Chart.yaml").write_text(head + dependencies)
    (mine / "values.yaml").write_text(values)
    (mine / "templates" / "pod.yaml").write_text(template)
    pod = dict(pods(render({}, mine)))["engine"]
    assert {"--budget=20GiB", "--preload=meta/llama-3.1-8b"} <= {*daemon_of(pod)["args"]}
    mounted = {mount["name"] for one in containers(pod) for mount in one["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["volumes"]}
    for version in VERSIONS:
        kubernetes_validate.validate(find(render({}, mine), "Pod", "engine"), version, strict=True)

"""Values that do not fit are refused before anything is installed, in words that say what would fit."""

from __future__ import annotations

import helm_python
import pytest

from kit.chart import HUGE, SIDECAR, Values, render


def arena(**fields: str) -> Values:
    return {"arena": fields}


REFUSED: dict[str, tuple[Values, str]] = {
    "a size with the daemon's unit": (arena(budget="64GB"), "/arena/budget': '64GB' does not match"),
    "a size without a unit": (arena(budget="1073741824"), "/arena/budget"),
    "a size of nothing": (arena(budget="0Gi"), "/arena/budget"),
    "a volume below the budget": (
        arena(budget="8Gi", sizeLimit="8Gi"),
        "arena.sizeLimit 8Gi is too small for arena.budget 8Gi: it must be 8208Mi or more",
    ),
    "a memory limit below budget and reserve": (
        {"resources": {"memory": "8Gi"}},
        "resources.memory 8Gi is too small for arena.budget 8Gi and arena.reserve 1Gi: it must be 9232Mi or more",
    ),
    "a memory limit below the reserve, with huge pages": (
        HUGE | {"resources": {"memory": "512Mi"}},
        "resources.memory 512Mi is too small",
    ),
    "a reserve below what the daemon takes": (arena(reserve="64Mi"), "arena.reserve 64Mi is too small"),
    "half a huge page": (
        SIDECAR | arena(budget="1025Mi", medium="HugePages-2Mi"),
        "arena.budget 1025Mi is no whole number of huge pages",
    ),
    "half a huge page in the volume": (
        SIDECAR | arena(budget="1024Mi", sizeLimit="1027Mi", medium="HugePages-2Mi"),
        "arena.sizeLimit 1027Mi is no whole number of huge pages",
    ),
    "a volume of huge pages below the budget": (
        SIDECAR | arena(budget="1024Mi", sizeLimit="1022Mi", medium="HugePages-2Mi"),
        "arena.sizeLimit 1022Mi is too small",
    ),
    "huge pages in node mode": (arena(medium="HugePages-2Mi"), "/arena/medium': value must be 'Memory'"),
    "a floor above the budget": (arena(adapterFloor="9Gi"), "arena.adapterFloor 9Gi is more than arena.budget 8Gi"),
    "a floor above all": (arena(adapterFloor="120%"), "/arena/adapterFloor"),
    "limits of one's own": ({"resources": {"limits": {}}}, "/resources': additional properties 'limits' not allowed"),
    "requests of one's own": ({"resources": {"requests": {}}}, "additional properties 'requests' not allowed"),
    "a capability for who is not root": (SIDECAR | {"ipcLock": True}, "/user/uid': value must be 0"),
    "an unknown mode": ({"mode": "cluster"}, "/mode': value must be one of 'node', 'sidecar'"),
    "a misspelled value": ({"budjet": "8Gi"}, "additional properties 'budjet' not allowed"),
    "a source without a scheme": ({"allowSource": ["/models"]}, "/allowSource/0"),
    "an ID that is none": ({"preload": ["../x"]}, "/preload/0"),
    "a digest that is none": ({"image": {"digest": "latest"}}, "/image/digest"),
    "a path on the node that others use": ({"node": {"hostPath": "/var"}}, "/node/hostPath"),
    "a namespace that is none": ({"node": {"workerNamespaces": ["Team_A"]}}, "/node/workerNamespaces/0"),
    "mount options with a command in them": ({"node": {"mountOptions": "huge=always;id"}}, "/node/mountOptions"),
    "a grace shorter than what calls get": ({"node": {"terminationGracePeriodSeconds": 10}}, "minimum"),
    "a wait longer than helm's": ({"node": {"purge": {"waitSeconds": 900}}}, "/node/purge/waitSeconds"),
    "a port for root": ({"http": {"port": 80}}, "/http/port"),
    "a port without a certificate": ({"tcp": {"port": 50051}}, "tcp.port is set and tcp.secretName is not"),
    "a level that is none": ({"seLinuxLevel": "unconfined"}, "/seLinuxLevel"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_and_told_why(case: str) -> None:
    values, why = REFUSED[case]
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    assert why in str(refused.value)


def test_sizes_that_just_fit_are_taken() -> None:
    assert render({"arena": {"budget": "8Gi", "sizeLimit": "8208Mi"}, "resources": {"memory": "9232Mi"}})
    assert render(SIDECAR | {"arena": {"budget": "1024Mi", "sizeLimit": "1024Mi", "medium": "HugePages-2Mi"}})

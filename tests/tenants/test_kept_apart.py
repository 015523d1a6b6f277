"""What belongs to one tenant is nobody else's: IDs, contents, listings, aliases and memory."""

from __future__ import annotations

import shutil

import pytest

from kit.models import write_model
from kit.processes import eventually, read_all
from kit.tenants import NODE, STRANGER, TENANTS, Estate
from warmshelf import errors


def test_the_same_id_in_two_tenants_means_two_contents(either: Estate) -> None:
    models = either.daemon.models
    tensors = {tenant: write_model(models / f"{tenant}.safetensors", number) for number, tenant in enumerate(TENANTS)}
    for tenant in TENANTS:
        with either.connect(tenant) as shelf:
            shelf.register("acme/model", f"file://{models}/{tenant}.safetensors")
    for tenant in TENANTS:
        with either.connect(tenant) as shelf:
            with shelf.acquire("acme/model", timeout=20) as lease:
                assert read_all(lease) == tensors[tenant]
            assert [artifact.artifact_id for artifact in shelf.list()] == ["acme/model"]
            assert len(either.segments(tenant)) == 1
    for other in (NODE, STRANGER):
        with either.connect(other) as shelf:
            assert shelf.list() == []
            with pytest.raises(errors.ArtifactNotFound):
                shelf.get("acme/model")
    with either.connect("red") as shelf:
        shelf.remove("acme/model")
    with either.connect("blue") as shelf:
        assert shelf.get("acme/model").state.value == "ready"


def test_equal_content_of_two_tenants_is_two_files_and_read_twice(estate: Estate) -> None:
    estate.start()
    path = estate.daemon.models / "m.safetensors"
    size = 4 << 20
    tensors = write_model(path, 1, size)
    shutil.copy(path, path.with_name("n.safetensors"))
    before = estate.daemon.read_bytes()
    for tenant in TENANTS:
        with estate.connect(tenant) as shelf:
            for name in ("m", "n"):
                shelf.register(name, f"file://{path.with_name(f'{name}.safetensors')}")
                with shelf.acquire(name, timeout=20) as lease:
                    assert lease.transport == "mapped"
                    assert read_all(lease) == tensors
    for tenant in TENANTS:
        eventually(lambda tenant=tenant: len(estate.segments(tenant)) == 1, "a tenant's own IDs share one file")
    assert estate.daemon.segments() == []
    assert estate.daemon.read_bytes() - before >= 4 * size


def test_an_operator_of_no_tenant_names_one_and_nobody_else_does(estate: Estate) -> None:
    estate.start()
    write_model(estate.daemon.models / "m.safetensors", 1)
    with estate.connect("red") as shelf:
        shelf.register("mine", f"file://{estate.daemon.models}/m.safetensors")
    with estate.connect(NODE, tenant="red") as shelf:
        assert [artifact.artifact_id for artifact in shelf.list()] == ["mine"]
        with shelf.acquire("mine", timeout=20) as lease:
            assert lease["layer.0.weight"]
    with estate.daemon.connect(tenant="red") as shelf:  # at the socket, whom anonymous_roles makes an operator
        assert [artifact.artifact_id for artifact in shelf.list()] == ["mine"]
    with estate.connect(NODE, tenant="green") as shelf, pytest.raises(errors.InvalidRequest, match="no tenant 'green'"):
        shelf.list()
    with estate.connect("red", tenant="red") as shelf:
        assert len(shelf.list()) == 1
    texts = set()
    for who, named in (("blue", "red"), ("blue", "green"), (STRANGER, "red"), (STRANGER, "green")):
        with estate.connect(who, tenant=named) as shelf, pytest.raises(errors.PermissionDenied) as caught:
            shelf.list()
        texts.add(caught.value.message)
    assert len(texts) == 1

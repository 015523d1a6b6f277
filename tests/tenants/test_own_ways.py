"""What comes in is a tenant's own too: pushes, declared artifacts, sources, preload; and how it is shown."""

from __future__ import annotations

import json
import re
import secrets

import crc32c
import pytest

from kit.guarded import opened
from kit.marked import Mark, marked, owners
from kit.models import safetensors_bytes, write_model
from kit.processes import eventually, read_all
from kit.scrape import HTTP, pages_of
from kit.tenants import NODE, TENANTS, Estate
from tenants.test_matrix import send
from warmshelf import ArtifactState, errors
from warmshelf.v1 import push_pb2

SIZE = 64 << 10


def test_the_number_of_another_tenants_push_begins_a_push_of_ones_own(estate: Estate) -> None:
    estate.start()
    data = {
        tenant: safetensors_bytes({"w": ("U8", (SIZE,), marked(Mark(number, 1, 1), SIZE))})
        for number, tenant in enumerate(TENANTS, 1)
    }
    push_id = secrets.token_hex(16)
    file = push_pb2.PushFile(name="m.safetensors", size_bytes=len(data["red"]))
    begin = push_pb2.BeginPushRequest(push_id=push_id, artifact_id="pushed", files=[file])
    half = data["red"][: SIZE // 2]
    write = push_pb2.WritePushRequest(push_id=push_id, crc32c=crc32c.crc32c(half), data=half)
    with opened(estate.channel("red")) as red, opened(estate.channel("blue")) as blue:
        for call, request in (("BeginPush", begin), ("WritePush", write)):
            list(send(red, f"warmshelf.v1.PushService/{call}", request))
        assert [*next(send(red, "warmshelf.v1.PushService/BeginPush", begin)).received_bytes] == [len(half)]
        assert [*next(send(blue, "warmshelf.v1.PushService/BeginPush", begin)).received_bytes] == [0]
    for number, tenant in enumerate(TENANTS, 1):
        path = estate.daemon.root / f"{tenant}.safetensors"
        path.write_bytes(data[tenant])
        with estate.connect(tenant) as shelf:
            shelf.push("acme/fresh", path=path)
            with shelf.acquire("acme/fresh", timeout=20) as lease:
                assert owners(bytes(lease["w"])) == {(number, 1, 1)}
            uri = shelf.get("acme/fresh").spec.source.uri
        with estate.connect(TENANTS[2 - number]) as other, pytest.raises(errors.WarmshelfError) as refused:
            other.register("theirs", uri)
        assert refused.value.reason in ("SOURCE_NOT_ALLOWED", "INVALID_SPEC")


def test_a_tenant_has_the_sources_that_it_is_given_and_none_beyond_the_daemons(estate: Estate) -> None:
    models = estate.daemon.models
    write_model(models / "red" / "m.safetensors", 1)
    write_model(models / "other" / "m.safetensors", 2)
    estate.start(tenants={"red": f'allow_source = ["{models}/red"]', "blue": ""})
    with estate.connect("red") as shelf:
        shelf.register("mine", f"file://{models}/red/m.safetensors")
        with pytest.raises(errors.SourceNotAllowed):
            shelf.register("theirs", f"file://{models}/other/m.safetensors")
    with estate.connect("blue") as shelf:
        shelf.register("mine", f"file://{models}/other/m.safetensors")
    estate.daemon.kill()
    estate.start(tenants={"red": 'allow_source = ["/etc"]', "blue": ""}, wait=False)
    assert estate.daemon.wait() == 2
    assert "within none of the daemon's allow_source" in estate.daemon.log.read_text()


def test_each_tenants_declared_artifacts_and_preload_are_its_own(estate: Estate) -> None:
    models = estate.daemon.models
    tables = {}
    for number, tenant in enumerate(TENANTS):
        write_model(models / f"{tenant}.safetensors", number)
        path = estate.daemon.root / f"{tenant}-declared.toml"
        path.write_text(f'"acme/model" = {{ source = "file://{models}/{tenant}.safetensors" }}\n')
        tables[tenant] = f'declare = "{path}"\npreload = ["acme/model"]'
    estate.start(*HTTP, tenants=tables)
    assert pages_of(estate.daemon).status("/readyz") == 200
    for tenant in TENANTS:
        with estate.connect(tenant) as shelf:
            found = shelf.get("acme/model")
            assert found.state is ArtifactState.READY
            assert found.spec.source.uri.endswith(f"{tenant}.safetensors")
    with estate.connect(NODE) as shelf:
        assert shelf.list() == []


def test_the_status_page_shows_the_tenant_that_is_asked_for(estate: Estate) -> None:
    estate.start(*HTTP)
    write_model(estate.daemon.models / "m.safetensors", 1)
    with estate.connect("red") as shelf:
        shelf.register("acme/red", f"file://{estate.daemon.models}/m.safetensors")
    pages = pages_of(estate.daemon)
    shown = {tenant: json.loads(pages.get(f"/status.json?tenant={tenant}")[1]) for tenant in ("", *TENANTS)}
    assert [row["artifact_id"] for row in shown["red"]["rows"]] == ["acme/red"]
    assert shown["blue"]["rows"] == shown[""]["rows"] == []
    assert [row["tenant"] for row in shown[""]["tenants"]] == list(TENANTS)
    html = pages.get("/?still")[1]
    assert re.search(r'href="/\?tenant=red[^"]*"', html)
    assert pages.status("/?tenant=nobody") == 200


def test_nothing_that_a_tenant_gets_is_anothers_while_both_load_and_evict_the_same_ids(estate: Estate) -> None:
    """I2: every block of every lease, mapped and streamed, under a budget that holds half of it."""
    estate.start("--adapter-floor", "0", budget="8MiB", tenants=dict.fromkeys(TENANTS, 'share = "3MiB"'))
    size, count = 1 << 20, 5
    for number, tenant in enumerate(TENANTS, 1):
        for artifact in range(count):
            path = estate.daemon.models / f"{tenant}-{artifact}.safetensors"
            path.write_bytes(safetensors_bytes({"w": ("U8", (size,), marked(Mark(number, artifact, 1), size))}))
            with estate.connect(tenant) as shelf:
                shelf.register(f"m{artifact}", f"file://{path}")
    with estate.connect("red") as red, estate.connect("blue", arena="/nowhere") as blue:
        for turn in range(4 * count):
            for number, shelf in ((1, red), (2, blue)):
                with shelf.acquire(f"m{turn * number % count}", timeout=20) as lease:
                    data = read_all(lease)["w"]
                    assert len(data) == size
                    assert owners(data) == {(number, turn * number % count, 1)}
    log = estate.daemon.log.read_bytes()
    assert not owners(log)
    eventually(lambda: len(estate.segments("red")) + len(estate.segments("blue")) <= 7, "the budget holds")

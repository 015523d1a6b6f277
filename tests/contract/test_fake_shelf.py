"""What only a FakeShelf has, and that it lacks nothing of a Shelf."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap
import threading

import pytest

import warmshelf
from kit.adapters import CONFIG
from kit.models import filled
from warmshelf import ArtifactKind, ArtifactState, errors, testing
from warmshelf.testing import FakeShelf


def test_a_fake_has_every_method_of_a_shelf_as_it_is() -> None:
    public = {name: getattr(warmshelf.Shelf, name) for name in _public()}
    assert {"acquire", "watch", "export", "register", "push"} <= public.keys()
    for name, member in public.items():
        assert inspect.signature(member) == inspect.signature(getattr(FakeShelf, name)), name


def _public() -> set[str]:
    members = inspect.getmembers(warmshelf.Shelf, callable)
    return {name for name, _ in members if not name.startswith("_")}


def test_only_what_rests_on_others_is_inherited_by_a_fake() -> None:
    assert _public() - vars(FakeShelf).keys() == {"watch", "export", "where"}


def test_tensors_are_added_to_a_fake_without_a_file() -> None:
    tensors = {"l.lora_A.weight": ("BF16", (4, 8), bytes(64)), "l.lora_B.weight": ("BF16", (8, 4), bytes(64))}
    with FakeShelf() as shelf:
        adapter = shelf.add("a", tensors, config={"peft_type": "LORA", "use_dora": True}, files={"x.txt": b"x"})
        assert adapter.kind is ArtifactKind.ADAPTER
        with shelf.acquire("a", features=["dora"]) as lease:
            assert dict(lease.files) == {CONFIG: json.dumps(lease.config).encode(), "x.txt": b"x"}
            assert lease.specs["l.lora_A.weight"].shape == (4, 8)
        with pytest.raises(errors.FeatureUnsupported):
            shelf.acquire("a", features=[])
        assert shelf.add("a", tensors, config=lease_config()).generation == 1
        with pytest.raises(errors.SourceChanged):
            shelf.add("a", filled(1))
        assert shelf.add("a", filled(1), replace=True).kind is ArtifactKind.BASE
        with pytest.raises(errors.MalformedArtifact):
            shelf.add("b", {"w": ("F32", (2,), b"four")})
        with pytest.raises(errors.UnsupportedDtype):
            shelf.add("b", {"w": ("F31", (1,), b"four")})


def lease_config() -> dict[str, object]:
    return {"peft_type": "LORA", "use_dora": True}


def test_the_documented_example_runs() -> None:
    code = textwrap.dedent("".join(re.findall(r"^    .*\n|^\n", testing.__doc__ or "", re.MULTILINE)))
    assert "FakeShelf()" in code
    exec(code, {})


def test_it_brings_nothing_heavy_with_it() -> None:
    code = "import sys, warmshelf.testing; print(sorted({'torch', 'numpy', 'blake3', 'typer'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


def test_a_lease_is_let_go_of_by_any_thread() -> None:
    with FakeShelf() as shelf:
        shelf.add("a", filled(1))
        leases = [shelf.acquire("a") for _ in range(20)]
        threads = [threading.Thread(target=lease.release) for lease in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert shelf.leases() == []
        assert shelf.evict("a").state is ArtifactState.REGISTERED

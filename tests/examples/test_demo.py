"""The demo, run as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]


@contextmanager
def two_places():
    """Where a demo may leave nothing: its temporary directory and its memory."""
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield [Path(temporary), Path(memory)]


def start_demo(places, *arguments):
    temporary, memory = places
    command = [sys.executable, "-m", "examples.demo", "--memory", str(memory), *arguments]
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "80"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def leftovers(places):
    """Files in the places and processes that name them."""
    files = [str(path) for place in places for path in place.rglob("*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        files += [command for place in places if str(place) in command]
    return files


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What one whole run of the demo found and left behind."""
    found = tmp_path_factory.mktemp("demo") / "facts.json"
    with two_places() as places:
        process = start_demo(places, "--json", str(found))
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return {**json.loads(found.read_text()), "output": output, "left": leftovers(places)}


def test_every_worker_answers_as_the_model_on_disk_does(facts):
    workers, text = facts["workers"], facts["peers"]["model"]["text"]
    assert facts["faults"] == []
    assert "Paris" in text
    assert [worker["transport"] for worker in workers] == ["mapped", "mapped", "streamed", "mapped"]
    assert {worker["text"] for worker in workers} == {worker["text_after"] for worker in workers} == {text}


def test_every_worker_has_the_very_bits_of_the_file(facts):
    assert {worker["digest"] for worker in facts["workers"]} == {facts["peers"]["model"]["digest"]}


def uses(facts):
    """Every acquire of an adapter, as its worker told it."""
    return [use for worker in facts["workers"] for use in worker["adapters"]]


def test_every_worker_answers_with_the_adapter_as_peft_does_from_disk(facts):
    text = facts["peers"]["adapter"]["text"]
    assert text == "Paris, says the adapter, which came by its ID alone."
    assert {use["text"] for use in uses(facts)} == {text}
    assert {worker["adapter_text_after"] for worker in facts["workers"]} == {text}


def test_both_forms_of_the_adapter_are_mapped_and_streamed(facts):
    acquired = {(use["artifact_id"], use["transport"]) for use in uses(facts)}
    assert acquired == {(name, way) for name in ("demo/lora", "demo/lora-tensors") for way in ("mapped", "streamed")}
    assert {use["digest"] for use in uses(facts)} == {facts["peers"]["adapter"]["digest"]}


def test_equal_content_is_one_segment_and_another_after_the_eviction(facts):
    cold, cold_tensors, *later = uses(facts)
    assert cold["segment_id"] == cold_tensors["segment_id"]
    assert len({use["segment_id"] for use in later}) == 1
    assert later[0]["segment_id"] != cold["segment_id"]
    assert facts["evicted_bytes"] >= facts["peers"]["adapter"]["tensor_bytes"]


def test_mapped_workers_share_one_copy_and_the_streamed_one_has_its_own(facts):
    model, adapter = (facts["peers"][which]["tensor_bytes"] for which in ("model", "adapter"))
    own = {"mapped": 0, "streamed": 0}
    for worker in facts["workers"]:
        own[worker["transport"]] += worker["own_bytes"]
    assert model + adapter <= facts["arena_bytes"] + own["mapped"] < 1.1 * (model + adapter)
    assert model + 2 * adapter <= own["streamed"] < 1.1 * (model + 2 * adapter)


def test_all_times_beside_the_peers_were_measured(facts):
    adapter = facts["peers"]["adapter"]
    assert min(adapter["peft_model_seconds"], adapter["tensorizer_model_seconds"]) > 0
    assert all(use["model_seconds"] > use["touched_seconds"] > use["seconds"] > 0 for use in uses(facts))
    assert all(worker["touched_seconds"] > worker["seconds"] > 0 for worker in facts["workers"])


def test_safetensors_is_shown_mapped_and_copied(facts):
    for peer in facts["peers"].values():
        mapped, copied, size = peer["safetensors_mapped"], peer["safetensors_copied"], peer["tensor_bytes"]
        assert mapped["own_bytes"] < 0.1 * size
        assert mapped["shared_bytes"] + mapped["own_bytes"] >= size
        assert copied["shared_bytes"] == 0
        assert copied["own_bytes"] >= size
        assert 0 < mapped["seconds"] < mapped["touched_seconds"]


def test_it_fits_80_columns_and_announces_what_takes_long(facts):
    lines = facts["output"].splitlines()
    assert max(map(len, lines)) <= 80
    announced = [line.split()[0] for line in lines if line.endswith("...")]
    assert announced == ["measuring", "workers", "workers"]
    assert "…" not in facts["output"]  # nothing in the table was cut


def test_a_finished_demo_leaves_no_process_and_no_file(facts):
    assert facts["left"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["SIGINT", "SIGHUP"])
def test_an_interrupted_demo_leaves_no_process_and_no_file(number):
    with two_places() as places:
        process = start_demo(places)
        for line in process.stdout:
            if line.split()[:1] == ["load"]:
                process.send_signal(number)
                break
        process.communicate()
        assert process.returncode == 128 + number
        assert leftovers(places) == []

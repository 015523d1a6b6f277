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
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "120"}
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
        return {**json.loads(found.read_text()), "left": leftovers(places)}


def test_every_worker_answers_as_the_model_on_disk_does(facts):
    workers, text = facts["workers"], facts["peers"]["text"]
    assert facts["faults"] == []
    assert "Paris" in text
    assert [worker["transport"] for worker in workers] == ["mapped", "mapped", "streamed", "mapped"]
    assert {worker["text"] for worker in workers} == {worker["text_after"] for worker in workers} == {text}


def test_every_worker_has_the_very_bits_of_the_file(facts):
    assert {worker["digest"] for worker in facts["workers"]} == {facts["peers"]["digest"]}


def test_mapped_workers_share_one_copy_and_the_streamed_one_has_its_own(facts):
    one_copy = facts["peers"]["tensor_bytes"]
    own = {"mapped": 0, "streamed": 0}
    for worker in facts["workers"]:
        own[worker["transport"]] += worker["own_bytes"]
    assert one_copy <= facts["arena_bytes"] + own["mapped"] < 1.1 * one_copy
    assert one_copy <= own["streamed"] < 1.1 * one_copy


def test_a_finished_demo_leaves_no_process_and_no_file(facts):
    assert facts["left"] == []


def test_an_interrupted_demo_leaves_no_process_and_no_file():
    with two_places() as places:
        process = start_demo(places)
        for line in process.stdout:
            if line.split()[:1] == ["load"]:
                process.send_signal(signal.SIGINT)
                break
        process.communicate()
        assert process.returncode == 130
        assert leftovers(places) == []

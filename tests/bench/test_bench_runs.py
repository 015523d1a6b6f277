"""The benchmarks' own code, run on tiny artifacts: it must measure every row. No time is judged."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import plot, readme, report, run, trace

ROOT = Path(__file__).resolve().parents[2]

ROW_COUNTS = {
    "mapped": 4,
    "adapter": 5,
    "reload": 3,
    "cold": 8,
    "tensors": 2,
    "s3": 4,
    "redis": 4,
    "encrypted": 1,
    "stream": 1,
    "memory": 1,
    "restart": 3,
    "health": 1,
    "experts": 4,
    "trace": 1,
    "bank": 2,
    "payload": 2,
}
"""Rows of each benchmark, where file systems may be mounted."""

HUGE_PAGES_ONLY = {"cold": 4, "tensors": 2}
"""How many of these rows need a file system of huge pages, and so the right to mount."""

MOUNTS = os.geteuid() == 0


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-W", "error", "-m", "benchmarks.run", "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


@pytest.fixture
def main(monkeypatch, capsys):
    """Runs a module of the benchmarks in this process and returns status, output and error output."""

    def run_it(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            sys.exit(module.main())
        return (caught.value.code, *capsys.readouterr())

    return run_it


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ROW_COUNTS)
def test_every_row_has_numbers_for_both_sides(measured, name):
    rows = json.loads((measured[0] / f"{name}.json").read_text())["rows"]
    assert len(rows) == ROW_COUNTS[name] - (0 if MOUNTS else HUGE_PAGES_ONLY.get(name, 0))
    for row in rows:
        samples = [*row["ours"]["samples"], *row["other"]["samples"]]
        assert all(math.isfinite(sample) and sample > 0 for sample in samples), row
        assert len(row["ours"]["samples"]) >= 2
        assert math.isfinite(row["ratio"])


def test_the_table_and_the_files_say_what_was_run_and_where(measured):
    out, printed = measured
    found = json.loads((out / "health.json").read_text())
    assert "--quick" in found["command"]
    assert found["quick"] is True
    assert found["machine"]["cores"] == os.cpu_count()
    assert "health check" in printed
    assert found["command"] in printed.replace("\n", "")


def test_nothing_but_the_samples_stays(measured):
    assert sorted(path.name for path in measured[0].glob("*.json")) == sorted(f"{name}.json" for name in ROW_COUNTS)
    assert [path.name for path in measured[0].iterdir() if path.is_dir()] == []


def test_an_unknown_row_is_named_with_those_there_are(main, tmp_path):
    status, _, err = main(run, "--quick", "--out", tmp_path, "--rows", "cold,nonsense")
    assert status == 2
    assert "no such row: nonsense" in err
    assert "restart" in err


def test_no_two_rows_have_one_key_and_what_is_read_again_is_what_was_kept(measured):
    rows, runs = report.read(measured[0])
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys)) == sum(ROW_COUNTS.values()) - (0 if MOUNTS else sum(HUGE_PAGES_ONLY.values()))
    assert len(runs) == len(ROW_COUNTS)
    kept = {row["key"]: row for file in measured[0].glob("*.json") for row in json.loads(file.read_text())["rows"]}
    for row in rows:
        assert [*row.ours.samples] == kept[row.key]["ours"]["samples"]
        assert row.other.value == kept[row.key]["other_value"]


def test_a_quick_figure_is_drawn_beside_its_samples_and_says_that_it_is_quick(main, measured):
    assert main(plot, measured[0]) == (0, f"{measured[0] / 'bench.png'}\n", "")
    assert (measured[0] / "bench.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "QUICK" in plot.draw(*report.read(measured[0])).get_supxlabel()


@pytest.mark.skipif(not MOUNTS, reason="some bars need the right to mount")
def test_every_bar_of_the_figure_is_of_a_row_that_there_is(measured):
    rows, runs = report.read(measured[0])
    missing = {bar.key for panel in plot.PANELS for bar in panel.bars} - {row.key for row in rows}
    assert missing == set()
    shown = [label.get_text() for axis in plot.draw(rows, runs).axes for label in axis.get_yticklabels()]
    assert shown == [bar.label for panel in plot.PANELS for bar in panel.bars]


def test_a_figure_of_some_rows_has_only_their_panels(measured):
    rows, runs = report.read(measured[0])
    figure = plot.draw([row for row in rows if row.key.startswith("reload.")], runs)
    assert len(figure.axes) == 1


@pytest.mark.parametrize("module", [plot, readme])
def test_without_samples_it_says_what_to_run(main, tmp_path, module):
    status, _, err = main(module, tmp_path)
    assert status == 1
    assert "run benchmarks.run first" in err


def test_the_readme_gets_every_row_between_its_marks(measured):
    rows, runs = report.read(measured[0])
    part = readme.figures(rows, runs)
    assert part.count("\n| ") == len(rows) + 1
    text = readme.put("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n", part)
    assert text == f"before\n<!-- figures -->\n\n{part}\n<!-- end of figures -->\nafter\n"
    assert readme.put(text, part) == text
    with pytest.raises(ValueError, match="end of figures"):
        readme.put("<!-- figures -->\n", part)


def test_figures_of_a_quick_run_are_printed_but_not_written(main, measured, tmp_path):
    assert main(readme, measured[0]) == (0, readme.figures(*report.read(measured[0])), "")
    target = tmp_path / "README.md"
    target.write_text("<!-- figures -->\n<!-- end of figures -->\n")
    status, _, err = main(readme, measured[0], "--write", target)
    assert status == 1
    assert "quick" in err
    assert target.read_text() == "<!-- figures -->\n<!-- end of figures -->\n"


def test_the_readme_has_the_place_for_the_figures():
    readme.put((ROOT / "README.md").read_text(), "")


def test_a_row_that_missed_its_reach_says_so():
    ours, other = report.Side("ours", (2.0,)), report.Side("peer", (1.0,))
    rows = [
        report.at_most("a", "a", ours, other),
        report.beside("b", "b", ours, other),
        report.at_most("c", "c", other, ours),
    ]
    lines = readme.figures(rows, [report.Run("command", {}, quick=False)]).splitlines()
    assert [line.count("**missed**") for line in lines if line.startswith(("| a", "| b", "| c"))] == [1, 0, 0]


@pytest.mark.parametrize(
    ("requests", "room_count", "loads"),
    [
        ("aaa", 1, "x--"),
        ("abab", 1, "xxxx"),
        ("abab", 2, "xx--"),
        ("abacb", 2, "xx-xx"),  # b is the least recently used when c comes
        ("abcab", 2, "xxxxx"),
    ],
)
def test_the_simulated_cache_evicts_the_least_recently_used(requests, room_count, loads):
    found = trace.lru_loads(map(ord, requests), room_count)
    assert "".join("x" if load else "-" for load in found) == loads


def test_the_trace_is_the_same_each_time_and_asks_more_often_for_the_first():
    requests = trace.zipf(100, 10_000)
    assert requests == trace.zipf(100, 10_000)
    counts = [requests.count(number) for number in (0, 1, 9, 99)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.15)

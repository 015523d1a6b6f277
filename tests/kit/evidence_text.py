"""The tables of ``docs/evidence.md``, made from the files of ``evidence/``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from killing.points import POINTS
from kit.evidence import EVIDENCE, bound_of
from soak.plan import WEEK


def runs() -> str:
    """Return what each long run did, where, and of which commit."""
    lines = ["| file | ended | commit | machine | result |", "|---|---|---|---|---|"]
    for path in sorted(EVIDENCE.glob("*.json")):
        run = _read(path.stem)
        machine = run["machine"]
        where = f"{machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}"
        lines.append(
            f"| [{path.name}](../evidence/{path.name}) | {run['ended']} | `{run['commit']}` | {where}, "
            f"Python {machine['python']} | {_RESULTS[path.stem](run)} |"
        )
    return "\n".join(lines)


def kills() -> str:
    """Return how often the daemon was killed where."""
    run = _read("kill-loop")
    lines = ["| killed at | brought there by | kills |", "|---|---|---:|"]
    lines += [
        f"| `{name}` | {POINTS[name].deed.replace('_', ' ')} | {count:,} |" for name, count in run["points"].items()
    ]
    compared = ", ".join(f"{size / 1e9:,.1f} GB {where}" for where, size in run["bytes_compared"].items())
    return "\n".join([*lines, "", f"Compared: {compared}; {run['looks']:,} looks at everything there is."])


def zoo() -> str:
    """Return every defect and the test that saw it."""
    lines = ["| defect | what is so with it | the first test that fails |", "|---|---|---|"]
    for row in _read("bug-zoo")["defects"]:
        sentence = row["seen_by"].removeprefix("test_").replace("_", " ")
        seen = f"{sentence} (`{row['test']}`)" if sentence else "**none**"
        lines.append(f"| {row['name']} | {row['breaks']} | {seen} |")
    return "\n".join(lines)


def fuzzing() -> str:
    """Return how many inputs each target was given."""
    run = _read("fuzz")
    lines = ["| target | inputs | at 95 % fewer findings an input than |", "|---|---:|---:|"]
    lines += [f"| `{name}` | {count:,} | {bound_of(count):.1e} |" for name, count in run["targets"].items()]
    return "\n".join(lines)


def soaking() -> str:
    """Return how often each thing happened in the soak, and what was judged."""
    run = _read("soak")
    lines = ["| what | times | of a week |", "|---|---:|---:|"]
    for name, count in run["done"].items():
        lines.append(f"| {name.replace('_', ' ')} | {count:,} | {count / asdict(WEEK)[name]:.0%} |")
    lines += ["", "| what must hold | found | at most |", "|---|---:|---:|"]
    for row in run["verdicts"]:
        found, limit = (f"{row[key]:g} {row['unit']}".strip() for key in ("found", "limit"))
        lines.append(f"| {row['what']} | {found} | {limit} |")
    compared = run["counts"]["bytes_compared"] / 1e9
    tail = f"{compared:,.1f} GB compared. Seed {run['seed']}. {run['note']}".strip()
    return "\n".join([*lines, "", tail])


def _fuzz_result(run: Mapping[str, Any]) -> str:
    return (
        f"{run['executions']:,} inputs for {len(run['targets'])} targets in {run['seconds_each']} s each: "
        f"{run['found']} findings; "
        f"at 95 % fewer than {run['bound_95']:g} an input"
    )


def _soak_result(run: Mapping[str, Any]) -> str:
    done, kept = run["done"], sum(row["is_good"] for row in run["verdicts"])
    return (
        f"{done['acquires']:,} acquires and {done['daemon_kills']} kills in {run['seconds'] / 60:.0f} minutes: "
        f"{run['faults']} faults, {kept} of {len(run['verdicts'])} limits kept"
    )


def histories() -> str:
    """Return what the callers of the histories did and were told."""
    subjects = _read("histories")["subjects"]
    lines = ["| | " + " | ".join(f"of a {subject}" for subject in subjects) + " |", "|---|" + "---:|" * len(subjects)]
    for what in ("histories", "with_a_kill", "calls", "calls_beside_another", "calls_that_a_kill_left_open"):
        counts = (f"{facts[what]:,}" for facts in subjects.values())
        lines.append(f"| {what.replace('_', ' ')} | {' | '.join(counts)} |")
    for answer in sorted({answer for facts in subjects.values() for answer in facts["answers"]}):
        call, _, reason = answer.partition(" ")
        counts = (f"{facts['answers'].get(answer, 0):,}" for facts in subjects.values())
        lines.append(f"| {call}: {f'`{reason}`' if reason else 'well'} | {' | '.join(counts)} |")
    return "\n".join(lines)


def _histories_result(run: Mapping[str, Any]) -> str:
    killed = sum(facts["with_a_kill"] for facts in run["subjects"].values())
    return (
        f"{run['histories']:,} histories, {killed:,} of them with a kill, in {run['seconds'] / 60:.0f} minutes: each "
        f"explained by an order; at 95 % fewer than {run['bound_95']:g} a history are not; seed {run['seed']}"
    )


def _kills_result(run: Mapping[str, Any]) -> str:
    return (
        f"{run['kills']:,} kills at {len(run['points'])} points, each {min(run['points'].values())} times or more, in "
        f"{run['seconds'] / 60:.0f} minutes: {run['faults']} faults; at 95 % fewer than {run['bound_95']:g} a kill; "
        f"seed {run['seed']}"
    )


def _zoo_result(run: Mapping[str, Any]) -> str:
    before = Counter(row.get("commit", run["commit"]) for row in run["defects"])
    del before[run["commit"]]
    told = "".join(f"; {count} of them in `{commit}`" for commit, count in before.items())
    return f"{run['seen']} of {run['planted']} defects seen{told}"


_RESULTS = {
    "kill-loop": _kills_result,
    "bug-zoo": _zoo_result,
    "fuzz": _fuzz_result,
    "soak": _soak_result,
    "histories": _histories_result,
}


def _read(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((EVIDENCE / f"{name}.json").read_text())
    return facts

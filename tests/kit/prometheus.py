"""A real Prometheus that scrapes a daemon twice a second, and promtool; Debian's, unpacked if not installed."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import urllib.parse
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kit.processes import eventually

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "mixin" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy" / "mixin" / "dashboards").glob("*.json"))
READY_SECONDS = 20
ANSWER_SECONDS = 10
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@cache
def programs() -> Path:
    """Return the directory of the programs; fails if they cannot be had."""
    done = subprocess.run([ROOT / "scripts" / "prometheus"], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def promtool(*arguments: str, text: str = "") -> tuple[int, str]:
    """Run promtool; return its status and all that it says."""
    command = [str(programs() / "promtool"), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


class Prometheus:
    """The server. It scrapes one address, evaluates the rules, and keeps all below ``root``."""

    def __init__(self, root: Path, target: str) -> None:
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "shelves", "static_configs": [{"targets": [target]}]}],
        }
        (root / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = root / "prometheus.log"
        command = [
            str(programs() / "prometheus"),
            f"--config.file={root}/prometheus.yml",
            f"--storage.tsdb.path={root}/data",
            "--web.listen-address=127.0.0.1:0",
            "--enable-feature=exemplar-storage",
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=root)
        eventually(
            lambda: "ready to receive web requests" in self._log.read_text(), "Prometheus is ready", READY_SECONDS
        )
        found = re.search(r'msg="Listening on" address=(\S+)', self._log.read_text())
        assert found is not None, self._log.read_text()
        self.address = found[1]

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        connection = http.client.HTTPConnection(self.address, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def query(self, expr: str) -> list[float]:
        """Return the values of an expression now; fails if it is none."""
        data = self.get("query", query=expr)
        samples = [data["result"]] if data["resultType"] == "scalar" else [one["value"] for one in data["result"]]
        return [float(value) for _, value in samples]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(READY_SECONDS)

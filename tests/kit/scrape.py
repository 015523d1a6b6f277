"""Asks the operators' pages as probes and Prometheus do, and reads the text as Prometheus does."""

from __future__ import annotations

import http.client
import re

from prometheus_client.parser import text_string_to_metric_families

from kit.processes import Daemon

PAGE_SECONDS = 10

HTTP = ("--http", "127.0.0.1:0")
"""What makes a daemon serve them on a port that the kernel chooses."""


class Pages:
    """The pages at one address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, method: str = "GET", accept: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.address, timeout=PAGE_SECONDS)
        try:
            connection.request(method, path, headers={"Accept": accept})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def status(self, path: str) -> int:
        return self.get(path)[0]

    def text(self) -> str:
        status, text = self.get("/metrics")
        assert status == 200, text
        return text

    def scrape(self) -> Scrape:
        return Scrape(self.text())


class Scrape:
    """What one scrape said: each sample by its name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = [sample for family in self.families.values() for sample in family.samples]
        self.values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(self.values) == len(samples), "a series stands there twice"

    def __getitem__(self, series: str) -> float:
        """Return the value of a series as it is written; 0 if there is none such."""
        name, _, labels = series.partition("{")
        pairs = re.findall(r'(\w+)="([^"]*)"', labels)
        return self.values.get((name, frozenset(pairs)), 0.0)


def pages_of(daemon: Daemon) -> Pages:
    """Return the pages of a daemon that was started with ``--http``."""
    found = re.search(r" http=(\S+)", daemon.ready_line)
    assert found is not None, daemon.ready_line
    return Pages(found[1])

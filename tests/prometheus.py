"""Debian's Prometheus on this machine, and what the dashboards and alerts of `k8s` ask of one."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from cli.servers import free_port

MONITORING = Path(__file__).parents[1] / "k8s/monitoring"
_RULES = MONITORING.parent / "base/monitoring.yaml"
DASHBOARDS: Mapping[str, Any] = {
    path.stem: json.loads(path.read_text()) for path in sorted(MONITORING.glob("*.json"))
}


class Panel(NamedTuple):
    """One query of a dashboard."""

    dashboard: str
    title: str
    target: str
    expr: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.title} {self.target}"

    def query(self, values: Mapping[str, str]) -> str:
        """The query with what a reader chooses, or Grafana by itself."""
        query = self.expr
        for name, value in values.items():
            query = query.replace(name, value)
        assert "$" not in query
        return query


PANELS = [
    Panel(name, panel["title"], target["refId"], target["expr"])
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]


def rule_groups() -> dict[str, Any]:
    """The rules as Prometheus reads them, without what prometheus-operator wraps around them."""
    found: dict[str, Any] = next(
        document["spec"]
        for document in yaml.safe_load_all(_RULES.read_text())
        if document["kind"] == "PrometheusRule"
    )
    return found


def alerts() -> Mapping[str, Any]:
    """The rules by the names of their alerts."""
    return {rule["alert"]: rule for group in rule_groups()["groups"] for rule in group["rules"]}


def selectors(expr: str) -> set[str]:
    """The metrics that a query asks for, each with its labels."""
    return set(re.findall(r"batchyard_\w+(?:\{[^}]*\})?", expr))


class Prometheus:
    """One that scrapes."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **params: str | float) -> Any:
        """What its API answers. Fails with its error."""
        found = httpx.get(f"{self._url}/api/v1/{path}", params=params, timeout=60)
        assert found.status_code == 200, found.text
        return found.json()["data"]

    def has_now(self, query: str) -> bool:
        """Whether the query gives a number now."""
        found = self.ask("query", query=query)["result"]
        return any(one["value"][1] != "NaN" for one in found)

    def has_had(self, query: str, since: float, until: float) -> bool:
        """Whether it gave one in any second between these Unix times."""
        found = self.ask("query_range", query=query, start=since, end=until, step=1)["result"]
        return any(value != "NaN" for one in found for _, value in one["values"])


@contextmanager
def running_prometheus(
    folder: Path, targets: Sequence[str], *, token: str | None = None, rules: bool = False
) -> Iterator[Prometheus]:
    """One that scrapes these every second; the test is skipped where the program is missing."""
    if (program := shutil.which("prometheus")) is None:
        reason = "NOT TESTED: there is no prometheus. It is in Debian's package `prometheus`."
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    job: dict[str, Any] = {"job_name": "fleet", "static_configs": [{"targets": list(targets)}]}
    if token is not None:
        job["authorization"] = {"credentials": token}
    config: dict[str, Any] = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    if rules:
        config["global"]["evaluation_interval"] = "1s"
        config["rule_files"] = ["rules.yaml"]
        (folder / "rules.yaml").write_text(yaml.safe_dump(rule_groups()))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    process = subprocess.Popen(
        [
            program,
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(60)

"""docs/operations.md and the alerts against each other, and the alerts against our metrics."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.monitoring.fleet_metrics import fleet_exposition
from shared.monitoring.metrics import Calls
from tests.fleet_counts import COUNTS

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/operations.md").read_text()
_RULES: list[dict[str, Any]] = [
    rule
    for document in yaml.safe_load_all((_ROOT / "k8s/base/monitoring.yaml").read_text())
    if document["kind"] == "PrometheusRule"
    for group in document["spec"]["groups"]
    for rule in group["rules"]
]
_METRIC = re.compile(r"\bbatchyard_\w+")


def test_each_alert_points_to_a_section_that_says_what_it_means_and_what_to_do() -> None:
    part = _PAGE.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    sections = re.findall(r"^### (\w+)\n\nMeans: .+\.\n\nDo: .+\.$", part, flags=re.MULTILINE)

    assert sections == [rule["alert"] for rule in _RULES]
    assert [rule["annotations"]["runbook"] for rule in _RULES] == [
        f"docs/operations.md#{name.lower()}" for name in sections
    ]


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule["alert"])
def test_an_alert_watches_numbers_that_are_exposed(rule: dict[str, Any]) -> None:
    names = set(_METRIC.findall(rule["expr"]))

    assert names
    assert names - _exposed() == set()


def test_labels_that_alerts_choose_by_are_exposed() -> None:
    for rule in _RULES:
        for metric, label in re.findall(r"(batchyard_\w+)\{(\w+)", rule["expr"]):
            assert re.search(rf"^{metric}\{{.*\b{label}=", _exposition(), flags=re.MULTILINE)


def test_each_event_of_the_log_that_the_page_names_is_logged() -> None:
    code = "".join(
        file.read_text()
        for room in ("gateway", "dispatcher", "worker", "shared")
        for file in (_ROOT / room).rglob("*.py")
    )

    for event in re.findall(r'"(\w+\.\w+)"', _PAGE.partition("## Alerts")[2]):
        assert f'"{event}"' in code, event


def _exposed() -> set[str]:
    return set(re.findall(r"^(batchyard_\w+)", _exposition(), flags=re.MULTILINE))


def _exposition() -> str:
    calls = Calls()
    calls.count("GET", "/v1/batches", 200, 0.1)
    up = {"redis": True, "rabbitmq": True}
    fleet = fleet_exposition(COUNTS, up=up, dead_letters=1, leads=True)
    return calls.exposition().decode() + fleet.decode()

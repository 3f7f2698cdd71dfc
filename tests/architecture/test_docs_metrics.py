"""docs/metrics.md against the metrics that processes expose.

`python -m tests.architecture.test_docs_metrics` writes its tables.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from shared.call_times import BOUNDS, Times
from shared.monitoring.fleet_metrics import fleet_exposition
from shared.monitoring.metrics import Calls, exposition, service_calls
from tests.fleet_counts import COUNTS

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: What Prometheus adds by itself.
_OWN_LABELS = frozenset({"le", "quantile"})


def test_the_tables_are_what_the_processes_expose() -> None:
    text = PAGE.read_text()

    assert with_tables(text) == text, "run make docs"


def with_tables(page: str) -> str:
    """The page with its generated tables as the code says."""
    calls = Calls()
    calls.count("GET", "/v1/batches", 200, 0.1)
    own = re.sub(r"^.*service_call.*\n", "", calls.exposition().decode(), flags=re.MULTILINE)
    fleet = fleet_exposition(COUNTS, up={"redis": True}, dead_letters=1, leads=True).decode()
    fleet = re.sub(r"^.*service_call.*\n", "", fleet, flags=re.MULTILINE)
    times = Times("s3", is_ok=True, counts=[1] * (len(BOUNDS) + 1), seconds=1.0)
    both = exposition([service_calls([times])]).decode()
    texts = {"gateway": own, "dispatcher": fleet, "both": both}
    return _GENERATED.sub(lambda found: f"{found[1]}\n{_table(texts[found[2]])}\n{found[3]}", page)


def _table(text: str) -> str:
    families = text_string_to_metric_families(text)
    rows = [_row(family) for family in families if not family.name.endswith("_created")]
    return "\n".join(["| Metric | Type | Labels | Means |", "|---|---|---|---|", *rows, ""])


def _row(family: Metric) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = sorted({f"`{label}`" for label in _labels(family)})
    return f"| `{name}` | {family.type} | {', '.join(labels) or 'none'} | {family.documentation} |"


def _labels(family: Metric) -> Iterator[str]:
    for sample in family.samples:
        yield from sample.labels.keys() - _OWN_LABELS


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))

"""The dashboards of k8s/monitoring, each query asked of a real Prometheus."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from shared.call_times import BOUNDS, Times
from shared.monitoring.fleet_metrics import fleet_exposition
from shared.monitoring.metrics import Calls, exposition, service_calls
from shared.state.census import FleetCounts
from tests.eventually import wait_until
from tests.fleet_counts import COUNTS
from tests.prometheus import (
    DASHBOARDS,
    MONITORING,
    PANELS,
    Panel,
    Prometheus,
    running_prometheus,
)

#: What a reader chooses, or Grafana by itself.
_VALUES = {"$lane": "m@l4", "$tenant": "acme", "$batch": "batch_1", "$__rate_interval": "5s"}


class _Growing(BaseHTTPRequestHandler):
    """Shows the metrics of a fleet whose counters grow with each scrape."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.scrapes += 1
        body = _metrics(server.calls, server.scrapes)
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the parent's name
        pass


def _metrics(calls: Calls, number: int) -> bytes:
    calls.count("GET", "/v1/batches", 200, 0.1)
    totals = [one._replace(number=one.number * number) for one in COUNTS.totals]
    ended = dict.fromkeys(COUNTS.ended, number)
    counted: FleetCounts = COUNTS._replace(totals=totals, ended=ended)
    times = Times("s3", is_ok=True, counts=[number] * (len(BOUNDS) + 1), seconds=float(number))
    fleet = fleet_exposition(counted, up={"redis": True}, dead_letters=0, leads=True)
    own = re.sub(rb"^.*service_call.*\n", b"", calls.exposition() + fleet, flags=re.MULTILINE)
    return own + exposition([service_calls([times])])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has scraped the metrics a few times."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Growing)
    server.scrapes, server.calls = 0, Calls()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = f"127.0.0.1:{server.server_address[1]}"
    try:
        with running_prometheus(tmp_path_factory.mktemp("prometheus"), [target]) as made:
            wait_until(lambda: server.scrapes > 4, 120)
            yield made
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("panel", PANELS, ids=str)
def test_each_panel_shows_something(panel: Panel, prometheus: Prometheus) -> None:
    wait_until(lambda: prometheus.has_now(panel.query(_VALUES)), 60)


def test_each_dashboard_is_in_compose() -> None:
    compose = yaml.safe_load((MONITORING.parents[1] / "compose.monitoring.yaml").read_text())
    mounted = {volume.split(":")[0] for volume in compose["services"]["grafana"]["volumes"]}

    assert {f"./k8s/monitoring/{name}.json" for name in DASHBOARDS} <= mounted


def test_the_traces_of_a_batch_are_asked_of_the_datasource_that_compose_provides() -> None:
    provided = yaml.safe_load((MONITORING / "grafana-datasources.yaml").read_text())["datasources"]
    [link] = DASHBOARDS["batch"]["links"]
    [pane] = json.loads(parse_qs(urlsplit(link["url"]).query)["panes"][0]).values()
    [query] = pane["queries"]

    assert {one.get("uid"): one["type"] for one in provided}[pane["datasource"]] == "tempo"
    # The attribute is that of docs/traces.md.
    assert query["query"] == '{ span.batchyard.batch.id = "${batch}" }'


def test_a_panel_of_the_fleet_never_adds_up_what_every_dispatcher_shows() -> None:
    for dashboard in DASHBOARDS.values():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                bare = re.findall(
                    r"sum(?: by \([^)]*\))? \((?:rate|increase)\((\w+)", target["expr"]
                )
                own = ("batchyard_http_", "batchyard_service_call_")
                assert [name for name in bare if not name.startswith(own)] == []

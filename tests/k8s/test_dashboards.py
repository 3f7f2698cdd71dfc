"""The dashboards of k8s/monitoring, each query asked of a real Prometheus."""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import yaml

from cli.servers import free_port
from shared.call_times import BOUNDS, Times
from shared.monitoring.fleet_metrics import fleet_exposition
from shared.monitoring.metrics import Calls, exposition, service_calls
from shared.state.census import FleetCounts
from tests.eventually import wait_until
from tests.fleet_counts import COUNTS

_FOLDER = Path(__file__).parents[2] / "k8s/monitoring"
_DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(_FOLDER.glob("*.json"))}
_PANELS = [
    pytest.param(target["expr"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, dashboard in _DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]
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
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one that has scraped the metrics a few times."""
    if (program := shutil.which("prometheus")) is None:
        reason = "NOT TESTED: there is no prometheus. It is in Debian's package `prometheus`."
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Growing)
    server.scrapes, server.calls = 0, Calls()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    target = f"127.0.0.1:{server.server_address[1]}"
    job = {"job_name": "fleet", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
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
        wait_until(lambda: server.scrapes > 4, 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("expr", _PANELS)
def test_each_panel_shows_something(expr: str, prometheus: str) -> None:
    query = expr
    for name, value in _VALUES.items():
        query = query.replace(name, value)

    def answers() -> bool:
        found = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}, timeout=60)
        assert found.status_code == 200, found.text
        return any(one["value"][1] != "NaN" for one in found.json()["data"]["result"])

    assert "$" not in query
    wait_until(answers, 60)


def test_each_dashboard_is_in_compose() -> None:
    compose = yaml.safe_load((_FOLDER.parents[1] / "compose.monitoring.yaml").read_text())
    mounted = {volume.split(":")[0] for volume in compose["services"]["grafana"]["volumes"]}

    assert {f"./k8s/monitoring/{name}.json" for name in _DASHBOARDS} <= mounted


def test_the_traces_of_a_batch_are_asked_of_the_datasource_that_compose_provides() -> None:
    provided = yaml.safe_load((_FOLDER / "grafana-datasources.yaml").read_text())["datasources"]
    [link] = _DASHBOARDS["batch"]["links"]
    [pane] = json.loads(parse_qs(urlsplit(link["url"]).query)["panes"][0]).values()
    [query] = pane["queries"]

    assert {one.get("uid"): one["type"] for one in provided}[pane["datasource"]] == "tempo"
    # The attribute is that of docs/traces.md.
    assert query["query"] == '{ span.batchyard.batch.id = "${batch}" }'


def test_a_panel_of_the_fleet_never_adds_up_what_every_dispatcher_shows() -> None:
    for dashboard in _DASHBOARDS.values():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                bare = re.findall(
                    r"sum(?: by \([^)]*\))? \((?:rate|increase)\((\w+)", target["expr"]
                )
                own = ("batchyard_http_", "batchyard_service_call_")
                assert [name for name in bare if not name.startswith(own)] == []

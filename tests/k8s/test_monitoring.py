"""compose.monitoring.yaml: what its parts are told of each other agrees, from span to picture."""

import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.prometheus import MONITORING, debians

_ROOT = MONITORING.parents[1]


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


_COMPOSE = _read(_ROOT / "compose.monitoring.yaml")
_COLLECTOR = _read(MONITORING / "collector.yaml")
_TEMPO = _read(MONITORING / "tempo.yaml")


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def test_each_part_of_the_collector_is_declared_and_in_a_pipeline() -> None:
    kinds = ("receivers", "processors", "exporters")
    for kind in kinds:
        pipelines = _COLLECTOR["service"]["pipelines"].values()
        used = [one for pipeline in pipelines for one in pipeline[kind]]
        assert set(used) == set(_COLLECTOR[kind])
    # The collector refuses to start with any other section.
    assert set(_COLLECTOR) <= {*kinds, "extensions", "connectors", "service"}
    # Its own documentation wants it first, so that spans are refused before they are kept.
    assert _COLLECTOR["service"]["pipelines"]["traces"]["processors"][0] == "memory_limiter"


def test_spans_find_their_way_from_every_process_to_tempo() -> None:
    services = _COMPOSE["services"]
    sent_to = services["gateway"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    address = urlsplit(sent_to.partition(":-")[2].rstrip("}"))
    taken = _COLLECTOR["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    forwarded = _COLLECTOR["exporters"]["otlp"]["endpoint"]
    [receiver] = _TEMPO["distributor"]["receivers"]["otlp"]["protocols"].values()

    assert services["gateway"] == services["dispatcher"] == services["ray-head"]
    assert (address.hostname, address.port) == ("collector", _port(taken))
    assert forwarded == f"tempo:{_port(receiver['endpoint'])}"
    assert {"collector", "tempo"} <= set(services)


def test_what_is_kept_fits_into_the_memory_that_it_may_have() -> None:
    services = _COMPOSE["services"]
    limit = _COLLECTOR["processors"]["memory_limiter"]["limit_mib"]
    [kept] = services["tempo"]["tmpfs"]

    assert limit < int(services["collector"]["mem_limit"].removesuffix("m"))
    assert kept == "/tmp:size=2g" and services["tempo"]["mem_limit"] == "3g"
    for store in ("local", "wal"):
        assert _TEMPO["storage"]["trace"][store]["path"].startswith("/tmp/")


def test_grafana_asks_where_prometheus_and_tempo_answer() -> None:
    sources = _read(MONITORING / "grafana-datasources.yaml")["datasources"]
    urls = {source["type"]: source["url"] for source in sources}

    assert urls == {
        "prometheus": "http://prometheus:9090",
        "tempo": f"http://tempo:{_TEMPO['server']['http_listen_port']}",
    }


def test_each_configuration_is_where_its_program_looks_for_it() -> None:
    for name in ("collector", "tempo", "prometheus", "grafana"):
        service = _COMPOSE["services"][name]
        mounted = dict(volume.split(":")[:2] for volume in service["volumes"])
        files = {target: _ROOT / source for source, target in mounted.items() if source[0] == "."}
        assert all(path.is_file() for path in files.values())
        for option in service.get("command", []):
            if "config" in option.partition("=")[0]:
                assert option.partition("=")[2] in files


def test_prometheus_reads_its_configuration(tmp_path: Path) -> None:
    promtool = debians("promtool")
    text = (MONITORING / "prometheus.yaml").read_text()
    (tmp_path / "token").write_text("t")
    (tmp_path / "prometheus.yaml").write_text(
        text.replace("/run/metrics-token", str(tmp_path / "token"))
    )

    ended = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr

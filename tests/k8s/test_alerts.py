"""The alerts of k8s/base/monitoring.yaml, by Prometheus itself: what wakes somebody, what not."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml

from shared.openai.endpoints import ENDPOINTS
from tests.prometheus import alerts, rule_groups

_RULES, _ALERTS = rule_groups(), alerts()

#: Hours in which all is well, a sample a minute, in promtool's notation: two dispatchers, of which
#: one leads; lanes that work, wait for their first machine, or rest; now and then something fails.
WELL = {
    'batchyard_dispatcher_leads{pod="d1"}': "1x360",
    'batchyard_dispatcher_leads{pod="d2"}': "0x360",
    'batchyard_service_up{service="redis"}': "1x100 0 1x258",
    'batchyard_service_up{service="rabbitmq"}': "1x360",
    'batchyard_service_up{service="s3"}': "1x200 0 1x158",
    'batchyard_service_up{service="ray"}': "1x360",
    'batchyard_redis_memory_bytes{pod="d1"}': "1000+1x100 2100x2 1000x257",
    'batchyard_redis_max_memory_bytes{pod="d1"}': "2500x360",
    'batchyard_redis_memory_bytes{pod="d2"}': "1000x360",
    'batchyard_redis_max_memory_bytes{pod="d2"}': "2500x360",
    'batchyard_oldest_batch_seconds{status="validating"}': "0x100 0+60x20 0x238",
    'batchyard_oldest_batch_seconds{status="in_progress"}': "0+60x360",
    'batchyard_oldest_batch_seconds{status="finalizing"}': "0x360",
    "batchyard_next_window_seconds": "86400-60x360",
    'batchyard_batches_ended_total{status="completed",pod="d1"}': "0+5x360",
    'batchyard_batches_ended_total{status="failed",pod="d1"}': "0+1x360",
    'batchyard_batches_ended_total{status="completed",pod="d2"}': "0+5x360",
    'batchyard_batches_ended_total{status="failed",pod="d2"}': "0+1x360",
    'batchyard_lane_batches{lane="busy@h100"}': "3x360",
    'batchyard_lane_rows{lane="busy@h100"}': "0+700x360",
    'batchyard_lane_job_silent_seconds{lane="busy@h100"}': "1x360",
    'batchyard_lane_failed{lane="busy@h100"}': "0x360",
    # Idle for hours; then there is work, and a machine that takes 25 minutes to come.
    'batchyard_lane_batches{lane="slow@h100"}': "0x200 1x159",
    'batchyard_lane_rows{lane="slow@h100"}': "50x225 0+10x134",
    'batchyard_lane_job_silent_seconds{lane="slow@h100"}': "0+60x202 1x157",
    'batchyard_lane_failed{lane="slow@h100"}': "0x360",
    'batchyard_lane_batches{lane="idle@l4"}': "0x360",
    'batchyard_lane_rows{lane="idle@l4"}': "90x360",
    'batchyard_lane_job_silent_seconds{lane="idle@l4"}': "0+60x360",
    'batchyard_lane_failed{lane="idle@l4"}': "0x360",
    'batchyard_outbox_oldest_seconds{outbox="events"}': "0x100 60 100 0x257",
    'batchyard_engine_state{lane="busy@h100",state="running"}': "1x360",
    'batchyard_engine_state_seconds{lane="busy@h100"}': "0+60x360",
    # Twenty minutes until it runs.
    'batchyard_engine_state{lane="slow@h100",state="starting"}': "_x205 1x20 _x135",
    'batchyard_engine_state{lane="slow@h100",state="running"}': "_x226 1x134",
    'batchyard_engine_state_seconds{lane="slow@h100"}': "_x205 0+60x20 0+60x134",
    # It failed long ago, and nobody needs it.
    'batchyard_engine_state{lane="idle@l4",state="waiting"}': "1x360",
    'batchyard_engine_state_seconds{lane="idle@l4"}': "0+60x360",
    "batchyard_dead_letters": "0x360",
    "batchyard_webhooks_overdue_seconds": "0x100 0+60x10 0x248",
    'batchyard_http_requests_total{status="200"}': "0+100x360",
    'batchyard_http_requests_total{status="503"}': "0+2x360",
    'batchyard_http_requests_total{method="POST",route="/v1/responses",status="200"}': "0+50x360",
    # A quarter of an hour in which every seventh call fails, and then hardly one.
    'batchyard_http_requests_total{method="POST",route="/v1/responses",status="503"}': (
        "0x100 0+8x4 32x255"
    ),
    'batchyard_batch_seconds_left{batch="b",tenant="acme",until="p80"}': "50000-60x360",
    'batchyard_batch_seconds_left{batch="b",tenant="acme",until="window"}': "60000-60x360",
}


class Planted(NamedTuple):
    """What differs from a day on which all is well, and what the alert then says."""

    differs: Mapping[str, str | None]
    #: Minutes until it has fired.
    after: int
    labels: Mapping[str, str] = MappingProxyType({})


PLANTED = {
    "BatchyardNobodyLeads": [
        Planted({'batchyard_dispatcher_leads{pod="d1"}': "0x360"}, 3),
        Planted(dict.fromkeys(name for name in WELL if "leads" in name), 3),
    ],
    "BatchyardServiceGone": [
        Planted({f'batchyard_service_up{{service="{name}"}}': "1x10 0x349"}, 14, {"service": name})
        for name in ("redis", "rabbitmq", "s3", "ray")
    ],
    "BatchyardRedisFills": [
        Planted({'batchyard_redis_memory_bytes{pod="d1"}': "1000x5 2100x354"}, 12)
    ],
    "BatchyardBatchStalled": [
        Planted(
            {'batchyard_oldest_batch_seconds{status="finalizing"}': "0+60x360"},
            37,
            {"status": "finalizing"},
        )
    ],
    "BatchyardWindowClosesSoon": [Planted({"batchyard_next_window_seconds": "7200-60x120"}, 63)],
    "BatchyardBatchMayBeLate": [
        Planted(
            {'batchyard_batch_seconds_left{batch="b",tenant="acme",until="p80"}': "70000-60x360"},
            12,
            {"batch": "b", "tenant": "acme"},
        )
    ],
    "BatchyardManyBatchesFail": [
        Planted(
            {
                f'batchyard_batches_ended_total{{status="{status}",pod="{pod}"}}': f"0+{each}x360"
                for pod in ("d1", "d2")
                for status, each in {"completed": 2, "failed": 1}.items()
            },
            60,
        )
    ],
    "BatchyardLaneStandsStill": [
        Planted({'batchyard_lane_rows{lane="busy@h100"}': "900x360"}, 45, {"lane": "busy@h100"})
    ],
    "BatchyardLaneJobSilent": [
        Planted(
            {'batchyard_lane_job_silent_seconds{lane="busy@h100"}': "0+60x360"},
            12,
            {"lane": "busy@h100"},
        )
    ],
    "BatchyardEngineCannotStart": [
        Planted({'batchyard_lane_failed{lane="idle@l4"}': "1x360"}, 6, {"lane": "idle@l4"})
    ],
    "BatchyardEngineStartsLong": [
        Planted(
            {
                f'batchyard_engine_state{{lane="busy@h100",state="{state}"}}': values
                for state, values in {"starting": "1x360", "running": None}.items()
            },
            40,
            {"lane": "busy@h100"},
        )
    ],
    "BatchyardOutboxLags": [
        Planted(
            {'batchyard_outbox_oldest_seconds{outbox="events"}': "0+60x360"},
            6,
            {"outbox": "events"},
        )
    ],
    "BatchyardDeadLetters": [Planted({"batchyard_dead_letters": "0x5 1x1434"}, 7)],
    "BatchyardWebhooksLate": [Planted({"batchyard_webhooks_overdue_seconds": "0+60x360"}, 22)],
    "BatchyardGatewayErrors": [
        Planted({'batchyard_http_requests_total{status="503"}': "0+12x360"}, 20)
    ],
    "BatchyardLiveCallsFail": [
        Planted(
            {
                'batchyard_http_requests_total{method="POST",route="/v1/responses",status="503"}': (
                    "0+8x360"
                )
            },
            70,
        )
    ],
}


def test_each_alert_is_planted() -> None:
    assert list(PLANTED) == list(_ALERTS)


def test_live_calls_are_those_of_all_endpoints() -> None:
    [routes] = set(re.findall('route=~"(.*?)"', _ALERTS["BatchyardLiveCallsFail"]["expr"]))

    assert all(re.fullmatch(routes, path) for path in ENDPOINTS)
    assert not re.fullmatch(routes, "/v1/batches")


@pytest.fixture(scope="module")
def promtool() -> str:
    if found := shutil.which("promtool"):
        return found
    reason = "NOT TESTED: there is no promtool. It is in Debian's package `prometheus`."
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_each_alert_fires_on_what_it_is_for(promtool: str, tmp_path: Path) -> None:
    tests = [
        _test(
            {**WELL, **planted.differs},
            alert_rule_test=[
                {
                    "eval_time": f"{planted.after}m",
                    "alertname": name,
                    "exp_alerts": [_fired(name, planted.labels)],
                }
            ],
        )
        for name, cases in PLANTED.items()
        for planted in cases
    ]

    assert _promtool_output(promtool, tmp_path, tests) == ""


def test_no_alert_fires_while_all_is_well(promtool: str, tmp_path: Path) -> None:
    fired = 'max_over_time(ALERTS{alertstate="firing"}[6h])'
    question = {"expr": fired, "eval_time": "6h", "exp_samples": []}

    assert _promtool_output(promtool, tmp_path, [_test(WELL, promql_expr_test=[question])]) == ""


def _test(series: Mapping[str, str | None], **questions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in series.items() if values
        ],
        **questions,
    }


def _fired(alert: str, labels: Mapping[str, str]) -> dict[str, Any]:
    rule = _ALERTS[alert]
    return {
        "exp_labels": {**rule["labels"], **labels},
        "exp_annotations": {
            name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)
            for name, text in rule["annotations"].items()
        },
    }


def _promtool_output(promtool: str, folder: Path, tests: list[dict[str, Any]]) -> str:
    """What promtool complains of; nothing if all tests hold."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(_RULES))
    plan = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(plan, width=10_000))
    ended = subprocess.run(
        [promtool, "test", "rules", "tests.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.stdout + ended.stderr if ended.returncode else ""

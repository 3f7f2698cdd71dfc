"""What a real run leaves in the numbers: each panel, each alert's series, and all GPU seconds."""

import asyncio
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from openai import OpenAI

from cli.fleet.catalog import CHAT_MODEL
from cli.servers import free_port
from shared.engines import EngineRecord, ReplicaNumbers
from tests.e2e.conftest import RunningFleet, chat_lines
from tests.eventually import wait_until
from tests.prometheus import PANELS, Panel, Prometheus, alerts, running_prometheus, selectors

_LANE = f"{CHAT_MODEL}@local"
_TENANT = "numbers"
_CHAT = "/v1/chat/completions"
_TOKEN = "a-token-for-metrics"
#: How many batches are watched at most.
_TRIES = 3


class Watched(NamedTuple):
    """A run that was scraped from its beginning to its end."""

    prometheus: Prometheus
    began_at: float
    ended_at: float
    batch_id: str


@pytest.fixture(scope="module")
def watched(warm_chat: RunningFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    port = free_port()
    targets = [warm_chat.root_url.removeprefix("http://"), f"127.0.0.1:{port}"]
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        warm_chat.settings(BATCHYARD_METRICS_TOKEN=_TOKEN, BATCHYARD_HEALTH_PORT=str(port)),
        running_prometheus(folder, targets, token=_TOKEN, rules=True) as prometheus,
    ):
        yield _work(warm_chat, prometheus)


def _work(fleet: RunningFleet, prometheus: Prometheus) -> Watched:
    """Batches with a row that fails, of which all but the first are watched while they run.

    A scrape fails after a second, and those of a busy machine may do so all the while: then there
    is another batch.
    """
    began_at = time.time()
    client = fleet.client_of(_TENANT)
    _run(fleet, client, rows=20)
    # A counter has to be seen before it grows.
    wait_until(lambda: prometheus.has_now(f'batchyard_rows_total{{tenant="{_TENANT}"}}'))
    tries = 0
    while True:
        batch_id = _run(fleet, client, rows=400)
        time.sleep(3)
        watched = Watched(prometheus, began_at, time.time(), batch_id)
        tries += 1
        if tries == _TRIES or all(_shows(panel, watched) for panel in PANELS):
            return watched


def _run(fleet: RunningFleet, client: OpenAI, *, rows: int) -> str:
    lines = chat_lines(rows, tokens=100) + _too_long()
    batch = fleet.submit(lines, _CHAT, client)
    assert fleet.wait(batch, client).status == "completed"
    client.chat.completions.create(
        model=CHAT_MODEL, messages=[{"role": "user", "content": "Trains?"}], max_tokens=8
    )
    return batch.id


def _too_long() -> bytes:
    """A request that the engine refuses."""
    [line] = chat_lines(1, tokens=10_000_000).splitlines(keepends=True)
    return line.replace(b"row-0", b"too-long")


def _shows(panel: Panel, watched: Watched) -> bool:
    values = {
        "$lane": _LANE,
        "$tenant": _TENANT,
        "$batch": watched.batch_id,
        "$__rate_interval": "15s",
    }
    return watched.prometheus.has_had(panel.query(values), watched.began_at, watched.ended_at)


@pytest.mark.parametrize("panel", PANELS, ids=str)
def test_each_panel_shows_what_the_run_did(panel: Panel, watched: Watched) -> None:
    assert _shows(panel, watched)


@pytest.mark.parametrize("name", alerts())
def test_each_alert_asks_for_series_that_a_fleet_has(name: str, watched: Watched) -> None:
    for selector in selectors(alerts()[name]["expr"]):
        asked = _NOT_DONE.sub("", selector)
        assert watched.prometheus.has_had(asked, watched.began_at, watched.ended_at), asked


#: What the run did not do: answer calls with a server's error, and start engines, if earlier tests
#: have started them.
_NOT_DONE = re.compile(r'(status=~"5\.\."|state=~"starting\|waiting"),?')


def test_prometheus_evaluates_each_alert(watched: Watched) -> None:
    [group] = watched.prometheus.ask("rules")["groups"]

    assert {rule["name"]: rule["health"] for rule in group["rules"]} == dict.fromkeys(
        alerts(), "ok"
    )


_COUNTED = ("gpu_rows", "gpu_live", "gpu_starting", "gpu_total")


class Looked(NamedTuple):
    """The engine while it rested: by its own clock, and as the fleet has counted it."""

    numbers: ReplicaNumbers
    engine: EngineRecord
    totals: dict[str, int]

    def idle_micros(self) -> float:
        """The engine's own idle time up to the fleet's look; it rested in between."""
        asked_at = self.numbers.clock + time.time() - time.monotonic()
        assert self.engine.gpus == 1
        return self.numbers.idle_micros + 1e6 * (self.engine.seen_at - asked_at)


def test_batches_live_calls_lost_rows_and_idle_time_are_all_of_an_engines_seconds(
    warm_chat: RunningFleet,
) -> None:
    first = _rested(warm_chat)
    # More than any machine has done when it is cancelled.
    lost = warm_chat.submit(chat_lines(400, tokens=900), _CHAT)
    wait_until(lambda: warm_chat.client.batches.retrieve(lost.id).status == "in_progress")
    time.sleep(6)
    warm_chat.client.batches.cancel(lost.id)
    warm_chat.client.chat.completions.create(
        model=CHAT_MODEL, messages=[{"role": "user", "content": "Trains?"}], max_tokens=200
    )
    assert warm_chat.wait(lost).status == "cancelled"
    last = _rested(warm_chat)

    grown = {name: last.totals[name] - before for name, before in first.totals.items()}
    wall = 1e6 * (last.engine.seen_at - first.engine.seen_at)
    idle = last.idle_micros() - first.idle_micros()
    lost_micros = last.numbers.lost_micros - first.numbers.lost_micros
    assert last.numbers.replica == first.numbers.replica
    assert grown["gpu_total"] == pytest.approx(wall * last.engine.gpus, rel=0.001)
    assert grown["gpu_starting"] == 0
    spent = grown["gpu_rows"] + grown["gpu_live"] + lost_micros + idle
    assert spent == pytest.approx(grown["gpu_total"], rel=0.001)
    assert min(grown["gpu_rows"], grown["gpu_live"], lost_micros, idle) > 0


def _rested(fleet: RunningFleet) -> Looked:
    """After work, when the engine has said all that it did and the fleet has looked again.

    Engines are asked while their lane has work, and once more after it; a batch may be too short
    for both.
    """
    for _ in range(10):
        fleet.wait(fleet.submit(chat_lines(200, tokens=100), _CHAT))
        ended_at, deadline = time.monotonic(), time.monotonic() + 20
        while time.monotonic() < deadline:
            if (found := asyncio.run(_look(fleet, ended_at))) is not None:
                return found
            time.sleep(0.5)
    raise AssertionError("The engine was never asked after its work.")


async def _look(fleet: RunningFleet, ended_at: float) -> Looked | None:
    """None until both have looked after this time on the monotonic clock."""
    state = fleet.state()
    try:
        found = await state.census.take()
    finally:
        await state.close()
    [engine] = [one for one in found.engines if one.lane == _LANE]
    looked_at = engine.seen_at - time.time() + time.monotonic()
    for numbers in found.replicas[_LANE]:
        if ended_at < numbers.clock < looked_at:
            totals = {one.what: one.number for one in found.totals if one.lane == _LANE}
            return Looked(numbers, engine, {name: totals.get(name, 0) for name in _COUNTED})
    return None

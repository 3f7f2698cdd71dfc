"""A lane whose model has two engines, and people who ask meanwhile: minutes, and so on demand."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from benchmarks.bench_fleet import FINAL, BenchFleet
from benchmarks.live_load import ask, door_of
from benchmarks.rows import CHAT
from cli.fleet import Fleet, Options
from cli.fleet.catalog import CHAT_MODEL, make_catalog
from shared.state import State
from tests.eventually import wait_until

pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(1800)]

#: Enough for a while after the second engine has started, which takes half a minute.
ROWS, ROW_TOKENS = 10_000, 64
PEOPLE, CALLS, TOKENS = 3, 60, 24


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[BenchFleet]:
    catalog = yaml.safe_load(make_catalog(tmp_path, []).read_text())
    entry = catalog["models"][CHAT_MODEL]
    # Few seats, and little patience with what waits for them.
    entry |= {"max_replicas": 2, "backlog_seconds": 5}
    entry["engine"]["max_num_seqs"] = 16
    path = tmp_path / "two-engines.yaml"
    path.write_text(yaml.safe_dump(catalog))
    running = Fleet(Options(tmp_path, catalog=path), report=print)
    try:
        running.start()
        yield BenchFleet(running, catalog=path)
    finally:
        running.stop()


def test_a_batch_gets_a_second_engine_and_people_are_answered_by_both(fleet: BenchFleet) -> None:
    fleet.seconds(CHAT, fleet.upload(CHAT, 1, tokens=1))
    # It is told a moment later.
    fleet.wait_for_replicas(CHAT, 1)
    alone = fleet.replicas(CHAT)
    batch = fleet.create(CHAT, fleet.upload(CHAT, ROWS, tokens=ROW_TOKENS))
    most = 0
    with ThreadPoolExecutor(1) as threads:
        fleet.wait_for_replicas(CHAT, 2)
        # Each answer that is no stream is an error of theirs.
        people = threads.submit(
            lambda: asyncio.run(ask(door_of(fleet), at_once=PEOPLE, tokens=TOKENS, calls=CALLS))
        )
        while batch.status not in FINAL:
            time.sleep(1)
            most = max(most, fleet.replicas(CHAT))
            batch = fleet.client.batches.retrieve(batch.id)
        seen = people.result()

    assert (alone, most) == (1, 2)
    assert fleet.finish(batch).output_file_id is not None
    assert [row["custom_id"] for row in _results(fleet, batch.output_file_id)] == [
        f"row-{row}" for row in range(ROWS)
    ]
    assert (seen.calls, len(seen.first)) == (CALLS, CALLS)
    # Both have computed a good part of it, which every engine tells by itself.
    computed = asyncio.run(_computed(fleet))
    assert len(computed) == 2
    assert min(computed) > ROWS * ROW_TOKENS / 10
    wait_until(lambda: _live_calls(fleet) == 0)


def _results(fleet: BenchFleet, file_id: str | None) -> list[dict[str, str]]:
    assert file_id is not None
    return [json.loads(line) for line in fleet.client.files.content(file_id).text.splitlines()]


def _live_calls(fleet: BenchFleet) -> int:
    """How many of the tenant's live calls are counted."""
    limits = fleet.client.get("/limits", cast_to=dict[str, dict[str, int]])
    return limits["live_calls"]["used"]


async def _computed(fleet: BenchFleet) -> list[int]:
    """The tokens that each of the model's engines has computed."""
    state = State(fleet.fleet.addresses.redis_url)
    found = (await state.census.take()).replicas[f"{CHAT_MODEL}@local"]
    await state.close()
    return [one.computed_tokens for one in found]

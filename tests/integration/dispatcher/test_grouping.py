"""Batches whose rows run in groups: what is written, who finds it again, how they end."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from redis.asyncio import Redis

from dispatcher.finaliser import Finaliser
from dispatcher.reaper import Reaper
from dispatcher.row_span import SpanLimits
from gateway.result_lines import ResultLines
from shared import ids
from shared.catalog import Catalog
from shared.catalog_file import load_catalog
from shared.ledger.copies import copies_prefix
from shared.lifecycle import Event
from shared.state import State
from shared.storage import Storage
from tests.integration.dispatcher.conftest import (
    CHAT,
    OUTPUT_SECONDS,
    SMALL_ENGINES,
    BatchYard,
    a_planner,
    bad,
    good,
    shuffled,
    with_prefix,
)
from tests.servers import S3

_SPAN = 40
_DAY = 86_400
_PLAN = f"""
import asyncio, sys
from pathlib import Path
from dispatcher.row_span import SpanLimits
from shared.catalog_file import load_catalog
from shared.state import State
from shared.storage import Storage
from tests.integration.dispatcher.conftest import a_planner
redis_url, namespace, batch_id, catalog, *s3 = sys.argv[1:]
async def plan():
    state = State(redis_url, namespace=namespace)
    planner = a_planner(state, Storage(*s3), load_catalog(Path(catalog)),
        spans=SpanLimits(rows={_SPAN}), mixed_batches=True)
    await planner.plan(batch_id)
asyncio.run(plan())
"""


@pytest.fixture(scope="module")
def small_engines(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    path = tmp_path_factory.mktemp("grouping") / "catalog.yaml"
    path.write_text(SMALL_ENGINES)
    return load_catalog(path)


@pytest.fixture
def grouping(state: State, storage: Storage, small_engines: Catalog) -> BatchYard:
    """A yard with spans of 40 rows and slices of 3."""
    planner = a_planner(
        state, storage, small_engines, spans=SpanLimits(rows=_SPAN), mixed_batches=True
    )
    finaliser = Finaliser(state, storage, output_seconds=OUTPUT_SECONDS)
    return BatchYard(state, storage, planner, finaliser)


def vector(row: int, text: int) -> bytes:
    body = {"model": "embedder", "input": f"{text} " * 500}
    url = "/v1/embeddings"
    request = {"custom_id": f"row-{row}", "method": "POST", "url": url, "body": body}
    return json.dumps(request).encode()


async def copies(yard: BatchYard, batch_id: str) -> list[str]:
    return await yard.storage.keys(copies_prefix(batch_id))


async def test_rows_that_begin_alike_share_slices_and_the_output_is_in_input_order(
    grouping: BatchYard,
) -> None:
    body = shuffled(prefixes=10, rows=9)

    batch_id = await grouping.plan(body)

    slices = await grouping.slices(batch_id)
    lines = body.splitlines()
    prefixes = [
        {json.loads(lines[row])["body"]["messages"][0]["content"][:2] for row in one.row_numbers}
        for one in slices[:-4]
    ]
    # Two spans with ten prefixes each, in slices of up to three rows. Ten rows are left.
    assert sum(map(len, prefixes)) <= len(prefixes) + 20
    assert len(await copies(grouping, batch_id)) == 2
    await grouping.run(batch_id, lambda row: good(f"{row}"))
    await grouping.finaliser.finish(batch_id)
    ended = (await grouping.state.batches.get(batch_id)).to_openai()
    results = await grouping.parsed(ended.output_file_id)
    assert [result["custom_id"] for result in results] == [f"row-{row}" for row in range(90)]
    assert [result["response"]["body"]["choices"] for result in results] == [
        [f"{row}"] for row in range(90)
    ]


async def test_rows_without_a_common_beginning_are_planned_as_if_there_were_no_groups(
    grouping: BatchYard, state: State, storage: Storage, small_engines: Catalog
) -> None:
    body = b"".join(with_prefix(row, 1000 + row) + b"\n" for row in range(100))
    plain = a_planner(state, storage, small_engines, spans=None, mixed_batches=True)

    grouped, usual = await grouping.submit(body), await grouping.submit(body)
    await grouping.planner.plan(grouped)
    await plain.plan(usual)

    assert await grouping.slices(grouped) == await grouping.slices(usual)
    assert await copies(grouping, grouped) == []


async def test_a_copy_that_is_gone_costs_nothing_but_reading(grouping: BatchYard) -> None:
    batch_id = await grouping.plan(shuffled(prefixes=10, rows=4))
    names = await copies(grouping, batch_id)
    assert names

    await grouping.storage.remove(names)

    await grouping.run(batch_id, lambda row: good(f"{row}"))
    await grouping.finaliser.finish(batch_id)
    ended = (await grouping.state.batches.get(batch_id)).to_openai()
    results = await grouping.parsed(ended.output_file_id)
    assert [result["custom_id"] for result in results] == [f"row-{row}" for row in range(40)]


async def test_rows_of_groups_that_never_ran_are_named_in_input_order(grouping: BatchYard) -> None:
    batch_id = await grouping.plan(shuffled(prefixes=10, rows=4))
    first, *_ = await grouping.claim(batch_id)
    await grouping.commit(first, [good(), bad(), good()])
    await grouping.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await grouping.state.claims.take_back(batch_id)

    await grouping.finaliser.finish(batch_id)

    ended = (await grouping.state.batches.get(batch_id)).to_openai()
    output = await grouping.parsed(ended.output_file_id)
    errors = await grouping.parsed(ended.error_file_id)
    rows = list(first.slice.row_numbers)
    assert [result["custom_id"] for result in output] == [f"row-{rows[0]}", f"row-{rows[2]}"]
    left = [f"row-{row}" for row in range(40) if row not in (rows[0], rows[2])]
    assert [result["custom_id"] for result in errors] == left


@pytest.mark.parametrize("seed", range(6))
async def test_any_mix_of_rows_ends_with_each_of_them_once_in_input_order(
    seed: int, state: State, storage: Storage, small_engines: Catalog
) -> None:
    dice = random.Random(seed)
    rows = dice.randint(30, 150)
    models = ["m", "other", "embedder"] if seed % 2 else ["m"]
    requests = []
    for row in range(rows):
        model, prefix = dice.choice(models), dice.randint(0, 12)
        if model == "embedder":
            requests.append(vector(row, prefix))
        else:
            # The engine would refuse some of them.
            limit = dice.choice([5, 0]) if prefix < 3 else 9
            requests.append(with_prefix(row, prefix, model=model, max_tokens=limit))
    planner = a_planner(
        state,
        storage,
        small_engines,
        rows=dice.randint(1, 9),
        spans=SpanLimits(rows=dice.randint(5, 100)),
        mixed_batches=True,
    )
    finaliser = Finaliser(state, storage, output_seconds=OUTPUT_SECONDS)
    yard = BatchYard(state, storage, planner, finaliser)

    batch_id = await yard.plan(b"".join(text + b"\n" for text in requests))
    await yard.run(batch_id, lambda row: bad() if row % 7 == 0 else good(f"{row}"))
    await yard.finaliser.finish(batch_id)

    ended = (await state.batches.get(batch_id)).to_openai()
    assert ended.status == "completed"
    for file_id, wanted in (
        (ended.output_file_id, [row for row in range(rows) if row % 7]),
        (ended.error_file_id, [row for row in range(rows) if row % 7 == 0]),
    ):
        results = await yard.parsed(file_id)
        assert [result["custom_id"] for result in results] == [f"row-{row}" for row in wanted]


@pytest.mark.parametrize("order", ["input", "completion"])
async def test_results_so_far_of_groups_come_in_either_order(
    order: Literal["input", "completion"], grouping: BatchYard
) -> None:
    batch_id = await grouping.plan(shuffled(prefixes=10, rows=9))
    claims = await grouping.claim(batch_id)
    done: list[int] = []
    for claim in claims[::-1]:
        await grouping.commit(claim, [good(f"{row}") for row in claim.slice.row_numbers])
        done += claim.slice.row_numbers
        record = await grouping.state.batches.get(batch_id)
        for start in (0, 13, 45, 80):
            results = ResultLines(grouping.state, grouping.storage, record, order)
            end = await results.end(start)
            chunks = [chunk async for chunk in results.read(start, end)]
            found = [ids.row_of_result(text) for text in b"".join(chunks).splitlines()]
            if order == "completion":
                assert found == done[start:]
            else:
                lacking = next((row for row in range(start, 90) if row not in done), 90)
                assert found == list(range(start, lacking))
    await grouping.finaliser.finish(batch_id)
    record = await grouping.state.batches.get(batch_id)
    results = ResultLines(grouping.state, grouping.storage, record, order)
    chunks = [chunk async for chunk in results.read(0, await results.end(0))]
    found = [ids.row_of_result(text) for text in b"".join(chunks).splitlines()]
    assert found == (done if order == "completion" else list(range(90)))


async def test_copies_are_swept_a_day_after_the_end_like_the_plan(
    grouping: BatchYard, redis: "Redis[str]", namespace: str
) -> None:
    batch_id = await grouping.plan(shuffled(prefixes=10, rows=4))
    prefix, garbage = copies_prefix(batch_id), f"{namespace}garbage"
    reaper = Reaper(grouping.state, grouping.storage)
    # Whatever becomes of the batch, it has ended by then.
    expires_at = (await grouping.state.batches.get(batch_id)).number("expires_at")
    assert await redis.zscore(garbage, prefix) == pytest.approx(expires_at + _DAY, abs=60)
    await grouping.run(batch_id, lambda _: good())
    await grouping.finaliser.finish(batch_id)
    await reaper.sweep()
    assert await copies(grouping, batch_id)

    due = await redis.zscore(garbage, f"batches/{batch_id}/plan.json")
    assert due == await redis.zscore(garbage, prefix)
    await redis.zadd(garbage, {prefix: time.time() - 1})
    await reaper.sweep()

    assert await copies(grouping, batch_id) == []


@pytest.mark.parametrize("point", ["planner.copied", "planner.copied:2", "planner.kept"])
async def test_a_planner_that_dies_between_copy_and_start_is_followed_by_another(
    point: str,
    grouping: BatchYard,
    redis: "Redis[str]",
    redis_url: str,
    namespace: str,
    s3: S3,
    tmp_path: Path,
) -> None:
    batch_id = await grouping.submit(shuffled(prefixes=10, rows=9))
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text(SMALL_ENGINES)
    arguments = [redis_url, namespace, batch_id, str(catalog), *s3, grouping.storage.bucket]
    died = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _PLAN, *arguments],
        env={**os.environ, "BATCHYARD_CRASH_AT": point},
        cwd=Path(__file__).parents[3],
        check=False,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    left = await copies(grouping, batch_id)
    assert left

    await grouping.planner.plan(batch_id)

    # What the first one wrote is swept together with what the plan names.
    assert set(left) < set(await copies(grouping, batch_id))
    assert await redis.zscore(f"{namespace}garbage", copies_prefix(batch_id)) is not None
    await grouping.run(batch_id, lambda row: good(f"{row}"))
    await grouping.finaliser.finish(batch_id)
    ended = (await grouping.state.batches.get(batch_id)).to_openai()
    results = await grouping.parsed(ended.output_file_id)
    assert [result["custom_id"] for result in results] == [f"row-{row}" for row in range(90)]


async def test_an_input_whose_rows_gain_from_groups_is_not_planned_on_the_way(
    grouping: BatchYard,
) -> None:
    alike, others = shuffled(prefixes=10, rows=4), with_prefix(0, 1) + b"\n"
    plan = partial(grouping.planner.plan_inline, offset=0, tenant="acme", expires_at=4_000_000_000)

    assert plan(CHAT, alike) is None
    assert plan(CHAT, others) is not None

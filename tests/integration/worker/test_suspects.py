"""Slices that were in an engine when it died, from claim to commit, in this process."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dispatcher.finaliser import Finaliser
from dispatcher.lost_inputs import fail_lost_inputs
from shared.catalog_file import load_catalog
from shared.lifecycle import Event, Status
from shared.ordering.work import Work
from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from shared.tenants import TenantSettings
from tests.batches import JOB, claim, claim_suspects
from tests.chaos.engine import KILL
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import CATALOG, BatchYard, a_planner
from tests.integration.worker.conftest import requests
from worker.batch_watch import BatchWatch
from worker.engine_errors import (
    EngineFailedError,
    EngineGoneError,
    EngineUnavailableError,
    Results,
)
from worker.outcomes import Outcome
from worker.slice_io import fetch, settle
from worker.slice_runner import SliceRunner
from worker.suspect_runner import SuspectRunner

LANE = "m@gpu"
_ROWS_A_SLICE = 40


@dataclass
class FragileEngine:
    """Dies with everything in it when a planted row comes, and is back at once."""

    deaths: int = 0
    #: The rows of each call in which it died.
    victims: list[int] = field(default_factory=list)
    #: What it raises instead of answering.
    trouble: Exception | None = None
    #: Set while it has rows that it never answers.
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    hold: str = ""

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        if self.trouble is not None:
            raise self.trouble
        life = self.deaths
        if any(KILL.encode() in line for line in lines):
            self.deaths += 1
            self.victims.append(len(lines))
            raise EngineGoneError("It died.")
        if self.hold and any(self.hold.encode() in line for line in lines):
            self.holding.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.deaths > life:
            raise EngineGoneError("It died.")
        yield [
            (position, (200, json.dumps({"at": self.deaths}).encode()))
            for position in range(len(lines))
        ]

    async def withdraw(self, batch_id: str) -> None:
        pass


@dataclass
class Lane:
    """The work of a lane job, one step at a time."""

    yard: BatchYard
    engine: FragileEngine
    runner: SliceRunner
    suspects: SuspectRunner

    async def batch(self, rows: int, *, deadly: Sequence[int] = (), **changes: Any) -> str:
        return await self.yard.plan(requests(rows, deadly=deadly), **changes)

    async def run(self) -> None:
        """Run until nothing is left."""
        while await self.step() or await self.trial():
            pass

    async def step(self) -> list[Outcome]:
        """Run everything that is ready, together."""
        state = self.yard.state
        candidates = await state.lanes.candidates(LANE, slices_per_batch=100)
        await state.lanes.feed(LANE, [candidate.member for candidate in candidates])
        claims = await claim(state, slices=100, rows=100_000, lane=LANE)
        bodies = [await fetch(self.yard.storage, one) for one in claims]
        results = await asyncio.gather(*map(self.runner.run, claims, bodies))
        for one, result in zip(claims, results, strict=True):
            await settle(state, self.yard.storage, one, result)
        return [result.outcome for result in results]

    async def trial(self) -> list[Outcome]:
        """Run the suspects that come first."""
        claims = await claim_suspects(self.yard.state, rows=16, lane=LANE)
        return await self.try_claims(claims)

    async def try_claims(self, claims: Sequence[Claim]) -> list[Outcome]:
        bodies = [await fetch(self.yard.storage, one) for one in claims]
        results = await self.suspects.run(claims, bodies)
        for one, result in zip(claims, results, strict=True):
            await settle(self.yard.state, self.yard.storage, one, result)
        return [result.outcome for result in results]

    async def rows(self, batch_id: str, kind: str) -> list[str]:
        """The custom ids of the batch's output or error file, in order."""
        await self.yard.finaliser.finish(batch_id)
        record = await self.yard.state.batches.get(batch_id)
        file_id = record.fields.get(f"{kind}_file_id")
        return [line["custom_id"] for line in await self.yard.parsed(file_id)] if file_id else []


@pytest.fixture
async def lane(state: State, storage: Storage, tmp_path: Path) -> Lane:
    engine, watch = FragileEngine(), BatchWatch(state)
    await state.lanes.open_job(LANE, "", JOB)
    (tmp_path / "catalog.yaml").write_text(CATALOG)
    catalog = load_catalog(tmp_path / "catalog.yaml")
    planner = a_planner(state, storage, catalog, rows=_ROWS_A_SLICE)
    return Lane(
        BatchYard(state, storage, planner, Finaliser(state, storage, output_seconds=3600)),
        engine,
        SliceRunner(engine, watch, rows_in_engine=64, rows_per_engine_call=16),
        SuspectRunner(
            engine,
            watch,
            rows_in_engine=64,
            rows_per_engine_call=16,
            max_batch_deaths=16,
            max_lane_deaths=12,
            max_tenant_deaths=200,
        ),
    )


@pytest.mark.parametrize("deadly", [[0], [39], [5, 6], [3, 50, 77], [3, 12, 21, 30, 39]])
async def test_each_row_that_kills_costs_four_engines_at_most_and_no_other_row_its_result(
    lane: Lane, deadly: list[int]
) -> None:
    mine, others = await lane.batch(100, deadly=deadly), await lane.batch(30)

    await lane.run()

    assert lane.engine.deaths <= 4 * len(deadly)
    assert await lane.rows(mine, "error") == [f"row-{row}" for row in deadly]
    assert await lane.rows(mine, "output") == [
        f"row-{row}" for row in range(100) if row not in deadly
    ]
    assert await lane.rows(others, "output") == [f"row-{row}" for row in range(30)]
    dead = await lane.yard.state.dead_rows.all()
    assert sorted(row.line - 1 for row in dead) == deadly
    assert {row.reason for row in dead} == {"It died."}
    # The last two times it was alone.
    assert lane.engine.victims[-2:] == [1, 1]


async def test_rows_that_are_run_again_are_alone_from_the_start_and_say_nothing_of_the_engine(
    lane: Lane,
) -> None:
    killers = [await lane.batch(1, deadly=[0], strikes=2) for _ in range(10)]
    harmless = await lane.batch(1, strikes=2)
    strangers = await lane.batch(100)

    await lane.run()

    # More than a lane's engine may have in a row, were they of rows that nobody knew.
    assert lane.engine.victims == [1] * 20
    assert await lane.yard.state.lanes.failure(LANE) is None
    assert [await lane.rows(batch_id, "error") for batch_id in killers] == [["row-0"]] * 10
    assert await lane.rows(harmless, "output") == ["row-0"]
    assert len(await lane.rows(strangers, "output")) == 100
    # Ids of these batches begin alike, and so do those of their rows.
    [dead] = await lane.yard.state.dead_rows.all()
    assert dead.deaths == 2


async def test_many_small_batches_are_suspected_together(lane: Lane) -> None:
    batches = [await lane.batch(1, deadly=[0] if number == 10 else []) for number in range(20)]

    await lane.run()

    ended = [await lane.rows(batch_id, "output") for batch_id in batches]
    assert [number for number, rows in enumerate(ended) if not rows] == [10]
    assert lane.engine.deaths <= 4


async def test_from_so_many_deaths_of_a_batch_on_nothing_of_it_is_tried_alone(lane: Lane) -> None:
    deadly = range(1, 40, 2)
    batch_id = await lane.batch(80, deadly=deadly)

    await lane.run()

    # 16 that count, and one for each call when all ran together.
    assert 16 <= lane.engine.deaths <= 19
    lost = await lane.rows(batch_id, "error")
    assert set(lost) >= {f"row-{row}" for row in deadly}
    assert len(lost) + len(await lane.rows(batch_id, "output")) == 80
    record = await lane.yard.state.batches.get(batch_id)
    assert record.status is Status.COMPLETED


async def test_a_death_counts_for_a_tenant_if_only_its_rows_were_in_the_engine(lane: Lane) -> None:
    await lane.batch(30, deadly=[7], tenant="acme")
    await lane.batch(5, tenant="globex")

    await lane.run()

    used = [await lane.yard.state.tenants.usage(tenant, ()) for tenant in ("acme", "globex")]
    assert lane.engine.deaths == 4
    # Once among all rows, once among those that were in the engine then, and twice alone.
    assert 2 <= used[0].engine_deaths <= 3
    assert used[1].engine_deaths == 0


async def test_at_a_tenants_limit_its_rows_with_strikes_are_given_up_and_others_are_tried(
    lane: Lane,
) -> None:
    await lane.yard.state.tenants.put("acme", TenantSettings(engine_deaths_per_day=2))
    first = await lane.batch(3, deadly=[1], tenant="acme")
    await lane.run()
    deaths = lane.engine.deaths
    second = await lane.batch(3, deadly=[1], tenant="acme")
    await lane.run()
    spent = lane.engine.deaths
    other = await lane.batch(3, deadly=[1], tenant="globex")
    await lane.run()

    assert "row-1" in await lane.rows(first, "error")
    # The first death is of rows that nobody suspected yet.
    assert (deaths <= 4, spent - deaths, lane.engine.deaths - spent) == (True, 1, 4)
    assert "row-1" in await lane.rows(second, "error")
    assert await lane.yard.state.batches.exists(other)
    usage = await lane.yard.state.tenants.usage("acme", ())
    assert usage.engine_deaths in (2, 3)


async def test_a_slice_that_was_not_in_the_engine_gets_no_strike(lane: Lane) -> None:
    [first, second] = [await lane.batch(1, deadly=[0]), await lane.batch(1, deadly=[0])]
    assert await lane.step() == [Outcome.STRUCK] * 2
    assert await lane.trial() == [Outcome.STRUCK] * 2

    # Each alone by now: the first one's death ends the trial.
    assert sorted(await lane.trial()) == [Outcome.STRUCK, Outcome.UNSEEN]

    strikes = [one.strikes for one in await claim_suspects(lane.yard.state, rows=2, lane=LANE)]
    assert sorted(strikes) == [2, 3]
    assert first != second


async def test_an_engine_that_is_not_there_costs_no_strike(lane: Lane) -> None:
    await lane.batch(3, deadly=[1])
    await lane.step()
    lane.engine.trouble = EngineUnavailableError("It is being restarted.")

    assert await lane.trial() == [Outcome.UNSEEN]

    [again] = await claim_suspects(lane.yard.state, lane=LANE)
    assert again.strikes == 1


async def test_an_engine_that_cannot_start_again_fails_the_lane(lane: Lane) -> None:
    await lane.batch(3, deadly=[1])
    await lane.step()
    lane.engine.trouble = EngineFailedError("CUDA out of memory")

    assert await lane.trial() == [Outcome.LANE_FAILED]

    assert await lane.yard.state.lanes.failure(LANE) == "CUDA out of memory"


async def test_a_suspect_whose_batch_is_cancelled_leaves_the_engine_and_keeps_what_it_has(
    lane: Lane,
) -> None:
    lane.engine.hold = '"answer 1"'
    batch_id = await lane.batch(3, deadly=[2])
    [claimed] = await _struck(lane, batch_id)
    trying = asyncio.create_task(lane.try_claims([claimed]))
    await asyncio.wait_for(lane.engine.holding.wait(), 30)

    await lane.yard.state.apply(batch_id, Event.CANCEL_REQUESTED)

    assert await asyncio.wait_for(trying, 30) == [Outcome.DONE]
    assert await lane.rows(batch_id, "output") == ["row-0"]
    assert len(await lane.rows(batch_id, "error")) == 2


async def test_a_suspect_whose_input_is_gone_fails_its_batch(lane: Lane) -> None:
    batch_id = await lane.batch(3, deadly=[2])
    await lane.step()
    key = (await lane.yard.state.batches.get(batch_id)).fields["key"]
    await lane.yard.storage.remove([key])

    trying = asyncio.create_task(lane.trial())

    async def is_told() -> bool:
        return await lane.yard.state.lanes.lost_inputs(LANE) == [batch_id]

    await eventually(is_told)
    await fail_lost_inputs(lane.yard.state, lane.yard.storage, LANE)

    assert await trying == [Outcome.INPUT_LOST]
    assert await lane.yard.state.lanes.lost_inputs(LANE) == []
    assert (await lane.yard.state.batches.get(batch_id)).status is Status.FAILED


async def _struck(lane: Lane, batch_id: str) -> list[Claim]:
    """The claim on the batch's slice after two deaths, so that its rows run one by one."""
    await lane.step()
    await lane.trial()
    got = await claim_suspects(lane.yard.state, lane=LANE)
    assert [one.batch_id for one in got] == [batch_id]
    return got

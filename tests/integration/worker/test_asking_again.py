"""Rows whose answers do not fit, from claim to commit, in this process."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dispatcher.finaliser import Finaliser
from shared.catalog_file import load_catalog
from shared.lifecycle import Event
from shared.ordering.work import Work
from shared.slices import Claim, to_part
from shared.state import State
from shared.storage import Storage
from shared.table.asking import asking_text
from tests.batches import JOB
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import CATALOG, BatchYard, a_planner
from tests.integration.worker.conftest import requests
from worker.batch_watch import BatchWatch
from worker.engine_errors import EngineGoneError, EngineYieldsError, Results
from worker.outcomes import Outcome
from worker.slice_io import fetch, settle
from worker.slice_runner import SliceRunner
from worker.suspect_runner import SuspectRunner

_SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
_ROWS = 20
_ASKING = asking_text(3, _SCHEMA)


@dataclass
class _Chatter:
    """Answers each row with what `says` gives for its name and how often it was asked."""

    says: Callable[[str, int], str]
    asked: Counter[str] = field(default_factory=Counter)
    #: Before it has so many rows in all, it dies.
    dies_before: int = 0
    #: So many calls get the half of their answers, and the rest of the rows is for another replica.
    yields: int = 0
    holds: bool = False

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        answered = len(lines)
        if self.yields:
            self.yields -= 1
            answered //= 2
        for position, line in enumerate(lines[:answered]):
            name = json.loads(line)["custom_id"]
            if self.holds and self.asked[name]:
                await asyncio.Event().wait()
            if self.dies_before and self.asked.total() + 1 == self.dies_before:
                self.dies_before = 0
                raise EngineGoneError("It died.")
            answer = self.says(name, self.asked[name])
            self.asked[name] += 1
            yield [(position, (200, _body(answer), 5))]
        if answered < len(lines):
            raise EngineYieldsError("People have it.", "replica")

    async def withdraw(self, batch_id: str) -> None:
        pass


@dataclass
class _Lane:
    yard: BatchYard
    engine: _Chatter
    runner: SliceRunner
    suspects: SuspectRunner

    async def run(self, batch_id: str) -> None:
        """Run until nothing is left."""
        while await self.step(batch_id):
            pass

    async def step(self, batch_id: str) -> list[Outcome]:
        return await self.run_claims(await self.yard.claim(batch_id))

    async def run_claims(self, claims: Sequence[Claim]) -> list[Outcome]:
        given = [await fetch(self.yard.storage, one) for one in claims]
        if any(one.strikes for one in claims):
            results = await self.suspects.run(claims, given)
        else:
            results = await asyncio.gather(*map(self.runner.run, claims, given))
        for one, result in zip(claims, results, strict=True):
            await settle(self.yard.state, self.yard.storage, one, result)
        return [result.outcome for result in results]

    async def ended(self, batch_id: str) -> dict[str, str]:
        """The record of the batch, whose rows each have one line in the output."""
        await self.yard.finaliser.finish(batch_id)
        fields = (await self.yard.state.batches.get(batch_id)).fields
        lines = await self.yard.parsed(fields["output_file_id"])
        assert [line["custom_id"] for line in lines] == [f"row-{row}" for row in range(_ROWS)]
        return dict(fields)


@pytest.fixture
async def lane(state: State, storage: Storage, tmp_path: Path) -> _Lane:
    engine, watch = _Chatter(lambda *_: '{"at": 1}'), BatchWatch(state)
    await state.lanes.open_job("m@gpu", "", JOB)
    (tmp_path / "catalog.yaml").write_text(CATALOG)
    catalog = load_catalog(tmp_path / "catalog.yaml")
    sizes = {"rows_in_engine": 64, "rows_per_engine_call": 4, "pool": "gpu"}
    deaths = {"max_batch_deaths": 16, "max_lane_deaths": 12, "max_tenant_deaths": 200}
    return _Lane(
        BatchYard(
            state,
            storage,
            a_planner(state, storage, catalog, rows=_ROWS),
            Finaliser(state, storage, output_seconds=3600),
        ),
        engine,
        SliceRunner(engine, watch, **sizes),  # type: ignore[arg-type]  # sizes, and the pool's name
        SuspectRunner(engine, watch, **sizes, **deaths),  # type: ignore[arg-type]  # as above
    )


def _body(answer: str) -> bytes:
    body: dict[str, Any] = {
        "choices": [{"message": {"content": answer}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }
    return json.dumps(body).encode()


def _hesitates(name: str, before: int) -> str:
    """Every third row answers with JSON only when it is asked the third time."""
    return '{"at": 1}' if int(name.removeprefix("row-")) % 3 or before == 2 else "Well,"


async def test_rows_are_asked_again_until_their_answer_fits_and_all_of_it_is_counted(
    lane: _Lane,
) -> None:
    lane.engine.says = _hesitates
    batch_id = await lane.yard.plan(requests(_ROWS), asking=_ASKING)

    await lane.run(batch_id)

    slow = [f"row-{row}" for row in range(0, _ROWS, 3)]
    assert lane.engine.asked == {f"row-{row}": 1 for row in range(_ROWS)} | dict.fromkeys(slow, 3)
    fields = await lane.ended(batch_id)
    assert int(fields["asked_again"]) == 2 * len(slow)
    assert int(fields["completed"]) == _ROWS
    assert int(fields["input_tokens"]) == 7 * lane.engine.asked.total()
    assert int(fields["output_tokens"]) == 2 * lane.engine.asked.total()
    assert json.loads(fields["spent"]) == {"m@gpu": 5 * lane.engine.asked.total()}
    assert (await lane.yard.state.batches.get(batch_id)).to_openai().asked_again == 2 * len(slow)


async def test_a_row_that_never_fits_keeps_its_last_answer(lane: _Lane) -> None:
    lane.engine.says = lambda name, before: f"{name} {before}"
    batch_id = await lane.yard.plan(requests(_ROWS), asking=_ASKING)

    await lane.run(batch_id)

    assert set(lane.engine.asked.values()) == {4}
    fields = await lane.ended(batch_id)
    lines = await lane.yard.parsed(fields["output_file_id"])
    answers = [one["response"]["body"]["choices"][0]["message"]["content"] for one in lines]
    assert answers == [f"row-{row} 3" for row in range(_ROWS)]


async def test_without_retries_nothing_is_asked_again(lane: _Lane) -> None:
    lane.engine.says = lambda *_: "no JSON"
    batch_id = await lane.yard.plan(requests(_ROWS))

    await lane.run(batch_id)

    assert set(lane.engine.asked.values()) == {1}
    assert "asked_again" not in await lane.ended(batch_id)


async def test_rows_that_an_engine_gives_back_are_asked_by_the_same_run(lane: _Lane) -> None:
    lane.engine.yields = 7
    batch_id = await lane.yard.plan(requests(_ROWS))

    assert set(await lane.step(batch_id)) == {Outcome.DONE}

    assert lane.engine.yields == 0
    assert lane.engine.asked == {f"row-{row}": 1 for row in range(_ROWS)}
    await lane.ended(batch_id)


@pytest.mark.parametrize("death", [3, 10, 22, 30])
async def test_an_engine_that_dies_between_two_questions_costs_no_row_its_result(
    lane: _Lane, death: int
) -> None:
    lane.engine.says = _hesitates
    lane.engine.dies_before = death
    batch_id = await lane.yard.plan(requests(_ROWS), asking=_ASKING)

    await lane.run(batch_id)

    fields = await lane.ended(batch_id)
    lines = await lane.yard.parsed(fields["output_file_id"])
    answers = {one["response"]["body"]["choices"][0]["message"]["content"] for one in lines}
    assert answers == {'{"at": 1}'}
    assert lane.engine.dies_before == 0


async def test_a_batch_that_is_cancelled_keeps_answers_that_do_not_fit(lane: _Lane) -> None:
    lane.engine.says = lambda *_: "no JSON"
    lane.engine.holds = True
    batch_id = await lane.yard.plan(requests(_ROWS), asking=_ASKING)
    running = asyncio.create_task(lane.step(batch_id))
    await eventually(lambda: len(lane.engine.asked) == _ROWS)

    await lane.yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await running

    fields = await lane.ended(batch_id)
    assert (int(fields["completed"]), int(fields["input_tokens"])) == (_ROWS, 7 * _ROWS)
    assert "asked_again" not in fields


async def test_a_part_that_is_taken_back_takes_its_count_with_it(lane: _Lane) -> None:
    lane.engine.says = _hesitates
    batch_id = await lane.yard.plan(requests(_ROWS), asking=_ASKING)
    await lane.run(batch_id)
    fields = (await lane.yard.state.batches.get(batch_id)).fields
    [planned] = [
        one async for page in lane.yard.state.slices.pages(batch_id, fields["plan"]) for one in page
    ]
    assert planned.part is not None
    assert to_part(json.dumps(planned.part)) == planned.part

    await lane.yard.state.claims.drop_part(batch_id, 0, planned.part)

    assert (await lane.yard.state.batches.get(batch_id)).number("asked_again") == 0

"""A deadline that cannot be met is said when the batch is planned."""

import json
import time

import pytest

from dispatcher.packing import Packer
from shared.catalog import Catalog
from shared.lifecycle import Event
from shared.state import State
from shared.storage import Storage
from shared.submission.admission import NewBatchQuota
from tests.batches import JOB
from tests.integration.dispatcher.conftest import BatchYard, a_planner, good, lines
from tests.manifests import inline

_LANE = "m@gpu"
_REPLY = {"to": "reply.acme.x", "message_id": "r", "correlation_id": "c"}


async def _runs_at(state: State, *, tokens_per_second: float) -> None:
    await state.lanes.open_job(_LANE, "", JOB)
    rates = {"rate": tokens_per_second / 100, "token_rate": tokens_per_second}
    await state.lanes.beat(_LANE, JOB, rows_wanted=0, **rates)


def _soon() -> int:
    return int(time.time()) + 900


def _packer(yard: BatchYard, catalog: Catalog) -> Packer:
    quota = NewBatchQuota(catalog, batches_per_hour=1000, requests=1000, tokens=10**9)
    return Packer(yard.state, yard.storage, quota=quota, planner=yard.planner)


@pytest.mark.parametrize(("tokens_per_second", "codes"), [(1.0, ["deadline_at_risk"]), (1e6, [])])
async def test_a_batch_that_cannot_be_done_in_time_says_so_from_its_plan_on(
    yard: BatchYard, tokens_per_second: float, codes: list[str]
) -> None:
    await _runs_at(yard.state, tokens_per_second=tokens_per_second)

    batch_id = await yard.plan(lines(10, max_tokens=1000), expires_at=_soon())

    batch = (await yard.state.batches.get(batch_id)).to_openai()
    assert [warning.code for warning in batch.warnings] == codes
    entries = await yard.state.outbox.read("events", limit=99, wait_seconds=0.001)
    snapshots = [one.snapshot() for one in entries if one.fields["type"] == "batch.in_progress"]
    assert ["warnings" in snapshot for snapshot in snapshots] == [bool(codes)]


async def test_what_requests_ask_for_in_vain_is_said_for_good(yard: BatchYard) -> None:
    await _runs_at(yard.state, tokens_per_second=1.0)

    batch_id = await yard.plan(
        lines(10, max_tokens=1000, web_search_options={"a": 1}), expires_at=_soon()
    )

    running = (await yard.state.batches.get(batch_id)).to_openai()
    await yard.run(batch_id, lambda _: good())
    await yard.finaliser.finish(batch_id)
    ended = (await yard.state.batches.get(batch_id)).to_openai()
    codes = [[warning.code for warning in batch.warnings] for batch in (running, ended)]
    assert codes == [["deadline_at_risk", "ignored_field"], ["ignored_field"]]


async def test_requests_that_will_be_refused_are_told_from_the_plan_on(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(3, max_tokens=1000, guided_choice=["a"]), expires_at=_soon())

    [warning] = (await yard.state.batches.get(batch_id)).to_openai().warnings
    assert warning.code == "refused_request"
    assert warning.message.startswith("Requests that get an error for 'guided_choice': 3. ")
    assert "structured_outputs.choice" in warning.message


async def test_where_no_rate_is_known_nothing_is_said(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(10, max_tokens=1000), expires_at=_soon())

    assert (await yard.state.batches.get(batch_id)).to_openai().warnings == []


async def test_a_giant_of_another_tenant_counts_by_its_share(
    yard: BatchYard, state: State, storage: Storage, catalog: Catalog
) -> None:
    """Alone, the batch takes about 10,000 of the 20,000 tokens that its window has room for."""
    await _runs_at(state, tokens_per_second=20.0)
    expires_at = int(time.time()) + 1000
    alone = await yard.plan(lines(10, max_tokens=1000), expires_at=expires_at)
    await state.apply(alone, Event.CANCEL_REQUESTED)
    await yard.plan(lines(200, max_tokens=1000), tenant="other")

    planner = a_planner(state, storage, catalog)
    beside = await yard.submit(lines(10, max_tokens=1000), expires_at=expires_at)
    await planner.plan(beside)

    records = await state.batches.many([alone, beside])
    assert [bool(one.fields.get("warnings")) for one in records] == [False, True]


async def test_the_reply_to_a_message_with_its_requests_has_the_warning(
    yard: BatchYard, catalog: Catalog
) -> None:
    await _runs_at(yard.state, tokens_per_second=1.0)
    made = [
        inline(name, lines(5, max_tokens=1000), reply=_REPLY, expires_at=expires_at)
        for name, expires_at in (("late", _soon()), ("calm", _soon() + 86_400))
    ]

    for batch in (*made, made[0]):
        await _packer(yard, catalog).make(batch)

    replies = await yard.state.outbox.read("replies", limit=9, wait_seconds=0.001)
    bodies = [json.loads(one.fields["body"])["batch"] for one in replies]
    codes = [[one["code"] for one in body.get("warnings", [])] for body in bodies]
    # The last one is the answer to a repeat.
    assert codes == [["deadline_at_risk"], [], ["deadline_at_risk"]]

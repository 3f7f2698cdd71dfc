"""Damaged result files are made again from their parts, byte by byte as they were."""

import asyncio
import json

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Invoked

from cli import servers
from cli.__main__ import app
from dispatcher.finaliser import Finaliser
from dispatcher.reaper import Reaper
from dispatcher.remaker import Remaker
from shared import ids
from shared.catalog import Catalog
from shared.ledger.quarantine import QUARANTINE
from shared.lifecycle import Event, Status
from shared.state import State
from shared.storage import Storage
from shared.tasks import end
from tests.integration.dispatcher.conftest import (
    BatchYard,
    Result,
    a_planner,
    bad,
    good,
    lines,
)


def _mixed(row: int) -> Result:
    return bad() if row % 3 == 0 else good(f"row {row}")


async def _ended(yard: BatchYard, rows: int = 10, *, event: Event | None = None) -> str:
    """A batch that has ended and whose parts are kept; if it closed early, some rows never ran."""
    batch_id = await yard.plan(lines(rows))
    claims = await yard.claim(batch_id)
    for number, claim in enumerate(claims):
        if event is None or number % 2 == 0:
            await yard.commit(claim, [_mixed(row) for row in claim.slice.row_numbers])
    if event is not None:
        fields = {"window_closed": 1} if event is Event.WINDOW_CLOSED else {}
        await yard.state.apply(batch_id, event, fields)
    for claim in claims:
        await yard.state.claims.release(claim)
    finaliser = Finaliser(yard.state, yard.storage, output_seconds=3600, keep_parts=True)
    await finaliser.finish(batch_id)
    await Reaper(yard.state, yard.storage).sweep()
    return batch_id


async def _remade(yard: BatchYard, batch_id: str) -> str:
    await yard.state.remakes.ask(batch_id)
    await Remaker(yard.state, yard.storage).remake(batch_id)
    return await yard.state.remakes.outcome(batch_id)


async def _damage(yard: BatchYard, key: str, *, is_gone: bool) -> bytes:
    body = await yard.storage.get(key)
    if is_gone:
        await yard.storage.remove([key])
    else:
        await yard.storage.put(key, body[:-9] + b"x" + body[-8:])
    return body


@pytest.mark.parametrize("is_gone", [False, True], ids=["wrong bytes", "gone"])
@pytest.mark.parametrize("kind", ["output", "error"])
@pytest.mark.parametrize("event", [None, Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED])
async def test_a_damaged_file_is_made_again_as_it_was(
    event: Event | None,
    kind: str,
    is_gone: bool,
    yard: BatchYard,  # a case of the test
) -> None:
    batch_id = await _ended(yard, event=event)
    file = await yard.state.files.get("acme", ids.output_file_id(batch_id, kind))
    body = await _damage(yard, file.key, is_gone=is_gone)

    outcome = await _remade(yard, batch_id)

    assert outcome == f"made again: its {kind} file"
    assert await yard.storage.get(file.key, etag=file.etag) == body
    assert len(await yard.storage.keys(QUARANTINE)) == (0 if is_gone else 1)
    assert await yard.state.remakes.waiting() == []
    assert await _remade(yard, batch_id) == "made nothing: its files are as they were written"


async def test_a_broken_part_is_never_put_into_a_file(yard: BatchYard) -> None:
    batch_id = await _ended(yard)
    file = await yard.state.files.get("acme", ids.output_file_id(batch_id, "error"))
    await _damage(yard, file.key, is_gone=False)
    damaged = await yard.storage.get(file.key)
    part = (await yard.state.slices.parts(batch_id))[1]
    await _damage(yard, part.key, is_gone=False)

    outcome = await _remade(yard, batch_id)

    assert outcome.startswith(f"not possible: The object {part.key} is damaged")
    assert await yard.storage.get(file.key) == damaged


async def test_without_parts_it_is_not_possible_and_says_so(yard: BatchYard) -> None:
    batch_id = await _ended(yard)
    file = await yard.state.files.get("acme", ids.output_file_id(batch_id, "output"))
    await _damage(yard, file.key, is_gone=False)
    await yard.storage.remove(await yard.storage.keys(f"batches/{batch_id}/parts/"))

    assert (await _remade(yard, batch_id)).startswith("not possible: S3 has no object")


async def test_the_only_part_of_a_batch_has_no_other_copy(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(2))
    await yard.run(batch_id, lambda _: good())
    await yard.finaliser.finish(batch_id)
    file = await yard.state.files.get("acme", ids.output_file_id(batch_id, "output"))
    await _damage(yard, file.key, is_gone=False)

    assert "its only part" not in (outcome := await _remade(yard, batch_id))
    assert outcome.startswith(f"not possible: The object {file.key} is damaged: it was the batch's")


async def test_only_a_batch_with_result_files_has_any_to_make(yard: BatchYard) -> None:
    running = await yard.plan(lines(3))

    assert "in_progress has no result files" in await _remade(yard, running)
    assert (await _remade(yard, "batch_unknown")).startswith("not possible: No batch found")
    assert (await yard.state.batches.get(running)).status is Status.IN_PROGRESS


async def test_parts_are_kept_for_a_day_where_they_may_be_needed(yard: BatchYard) -> None:
    batch_id = await _ended(yard)

    assert len(await yard.storage.keys(f"batches/{batch_id}/parts/")) == 4


async def test_the_command_waits_for_the_dispatcher_and_prints_what_came_of_it(
    own_state: State, storage: Storage, redis_server: servers.Redis, catalog: Catalog
) -> None:
    planner = a_planner(own_state, storage, catalog)
    finaliser = Finaliser(own_state, storage, output_seconds=3600)
    yard = BatchYard(own_state, storage, planner, finaliser)
    batch_id = await _ended(yard)
    file = await own_state.files.get("acme", ids.output_file_id(batch_id, "output"))
    body = await _damage(yard, file.key, is_gone=False)

    async def obey() -> None:
        remaker = Remaker(own_state, storage)
        while True:
            for one in await own_state.remakes.waiting():
                await remaker.remake(one)
            await asyncio.sleep(0.01)

    def command(*arguments: str) -> Invoked:
        options = ["--redis-url", redis_server.url, "--json"]
        return CliRunner().invoke(app, ["remake", *arguments, *options])

    obeying = asyncio.create_task(obey())
    made = await asyncio.to_thread(command, batch_id)
    refused = await asyncio.to_thread(command, "batch_unknown")
    await end(obeying)
    alone = await asyncio.to_thread(command, batch_id, "--timeout", "1")

    # What the remaker logs is in the same output.
    assert json.loads(made.stdout.splitlines()[-1]) == {
        "batch": batch_id,
        "outcome": "made again: its output file",
    }
    assert await storage.get(file.key) == body
    assert "not possible: No batch found" in str(refused.exception)
    assert "No dispatcher has done it within 1 seconds" in str(alone.exception)
    assert await own_state.remakes.waiting() == []

"""Parts that lose their bytes before the batch ends: their slices run again, and no others."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dispatcher.finaliser import Finaliser
from shared.catalog_file import load_catalog
from shared.errors import TransientError
from shared.ledger.quarantine import QUARANTINE
from shared.lifecycle import Event, Status
from shared.storage import Storage
from tests.faults.s3_proxy import Refusal, s3_proxy
from tests.integration.dispatcher.conftest import (
    OUTPUT_SECONDS,
    SMALL_ENGINES,
    BatchYard,
    Result,
    a_planner,
    bad,
    good,
    lines,
    shuffled,
)
from tests.servers import S3

Damage = Callable[[bytes], bytes | None]
_DAMAGES: dict[str, Damage] = {
    "a flipped bit": lambda body: body[:-20] + bytes([body[-20] ^ 1]) + body[-19:],
    "a line that is no result": lambda body: b"?" + body[1:],
    "cut off": lambda body: body[: len(body) // 2],
    "gone": lambda _: None,
}


async def _damage(yard: BatchYard, key: str, damage: Damage) -> bytes | None:
    """Returns what is there now."""
    body = damage(await yard.storage.get(key))
    if body is None:
        await yard.storage.remove([key])
    else:
        await yard.storage.put(key, body)
    return body


def _mixed(row: int) -> Result:
    return bad() if row % 3 == 0 else good(f"row {row}")


@pytest.mark.parametrize(
    ("damage", "rows"),
    [
        *(
            pytest.param(damage, rows, id=f"{name}, {which}")
            for name, damage in _DAMAGES.items()
            for rows, which in ((3, "the only part"), (10, "one of several"))
        ),
        # Of several, nobody reads what follows the results.
        pytest.param(lambda body: body + b"{}\n", 3, id="longer, the only part"),
    ],
)
async def test_a_broken_part_makes_its_slice_run_again_and_no_other(
    damage: Damage, rows: int, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(rows))
    await yard.run(batch_id, lambda row: good("first"))
    parts = await yard.state.slices.parts(batch_id)
    index = len(parts) - 1
    damaged = await _damage(yard, parts[index].key, damage)

    await yard.finaliser.finish(batch_id)
    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.IN_PROGRESS
    again = await yard.claim(batch_id)
    for claim in again:
        await yard.commit(claim, [good("second") for _ in claim.slice.row_numbers])
    await yard.finaliser.finish(batch_id)

    assert [(claim.index, claim.epoch) for claim in again] == [(index, 2)]
    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is Status.COMPLETED
    output = await yard.parsed(shape.output_file_id)
    assert [one["custom_id"] for one in output] == [f"row-{row}" for row in range(rows)]
    said = [one["response"]["body"]["choices"] for one in output]
    ran_again = len(again[0].slice.row_numbers)
    assert said == [["first"]] * (rows - ran_again) + [["second"]] * ran_again
    assert shape.request_counts.model_dump() == {"total": rows, "completed": rows, "failed": 0}
    assert shape.usage.input_tokens == 3 * rows
    # What was damaged can still be looked at.
    kept = await yard.storage.keys(QUARANTINE)
    assert [key.endswith(parts[index].key) for key in kept] == [True] * (damaged is not None)
    assert [await yard.storage.get(key) for key in kept] == ([damaged] if damaged else [])


@pytest.mark.parametrize("damage", [*_DAMAGES.values()], ids=[*_DAMAGES])
async def test_a_broken_part_among_those_of_one_stretch_is_found(
    damage: Damage, yard: BatchYard, tmp_path: Path
) -> None:
    (tmp_path / "catalog.yaml").write_text(SMALL_ENGINES)
    catalog = load_catalog(tmp_path / "catalog.yaml")
    planner = a_planner(yard.state, yard.storage, catalog, rows=8)
    batch_id = await yard.submit(shuffled(8, 8))
    await planner.plan(batch_id)
    await yard.run(batch_id, _mixed)
    slices, parts = await yard.slices(batch_id), await yard.state.slices.parts(batch_id)
    assert slices[0].mask
    await _damage(yard, parts[0].key, damage)

    await yard.finaliser.finish(batch_id)

    again = await yard.claim(batch_id)
    assert [claim.index for claim in again] == [0]
    await yard.commit(again[0], [_mixed(row) for row in again[0].slice.row_numbers])
    await yard.finaliser.finish(batch_id)
    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert (shape.status, shape.request_counts.total) == (Status.COMPLETED, 64)
    names = [one["custom_id"] for one in await yard.parsed(shape.output_file_id)]
    names += [one["custom_id"] for one in await yard.parsed(shape.error_file_id)]
    assert sorted(names) == sorted(f"row-{row}" for row in range(64))


async def test_all_broken_parts_run_again_at_once(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(12))
    await yard.run(batch_id, lambda row: good())
    parts = await yard.state.slices.parts(batch_id)
    for index in (0, 2):
        await _damage(yard, parts[index].key, _DAMAGES["cut off"])

    await yard.finaliser.finish(batch_id)

    assert [claim.index for claim in await yard.claim(batch_id)] == [0, 2]


@pytest.mark.parametrize(
    ("event", "fields", "end", "code"),
    [
        (Event.CANCEL_REQUESTED, {}, Status.CANCELLED, "batch_cancelled"),
        (Event.WINDOW_CLOSED, {"window_closed": 1}, Status.EXPIRED, "batch_expired"),
    ],
)
async def test_a_batch_that_closes_says_of_lost_rows_that_they_did_not_run(
    event: Event, fields: dict[str, int], end: Status, code: str, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(9))
    claims = await yard.claim(batch_id)
    for claim in claims[:2]:
        await yard.commit(claim, [good()] * 3)
    await yard.state.apply(batch_id, event, fields)
    await yard.state.claims.release(claims[2])
    parts = await yard.state.slices.parts(batch_id)
    await _damage(yard, parts[0].key, _DAMAGES["a flipped bit"])

    await yard.finaliser.finish(batch_id)
    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is end
    output = await yard.parsed(shape.output_file_id)
    assert [one["custom_id"] for one in output] == [f"row-{row}" for row in (3, 4, 5)]
    errors = await yard.parsed(shape.error_file_id)
    assert {one["custom_id"]: one["error"]["code"] for one in errors} == {
        f"row-{row}": code for row in (0, 1, 2, 6, 7, 8)
    }


async def test_what_was_broken_and_ran_again_is_told_to_subscribers(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(3))
    await yard.run(batch_id, lambda row: good())
    before = await yard.state.batches.get(batch_id)
    [part] = (await yard.state.slices.parts(batch_id)).values()
    await _damage(yard, part.key, _DAMAGES["gone"])

    await yard.finaliser.finish(batch_id)

    assert (await yard.events(batch_id))[-2:] == ["batch.finalizing", "batch.in_progress"]
    record = await yard.state.batches.get(batch_id)
    assert record.number("in_progress_at") == before.number("in_progress_at")
    assert "finalizing_at" not in record.fields
    assert (record.number("completed"), record.number("output_tokens")) == (0, 0)


async def test_a_part_that_s3_fails_for_alone_runs_again_after_a_while(
    yard: BatchYard, s3: S3
) -> None:
    batch_id = await yard.plan(lines(6))
    await yard.run(batch_id, lambda row: good())
    parts = await yard.state.slices.parts(batch_id)
    with s3_proxy(s3.endpoint) as proxy:
        keys = s3.access_key, s3.secret_key, yard.storage.bucket
        storage = Storage(proxy.endpoint, *keys, attempts=1)
        finaliser = Finaliser(
            yard.state, storage, output_seconds=OUTPUT_SECONDS, unanswered_seconds=0.5
        )
        proxy.judge = lambda _, path: Refusal(500, "UnknownError") if parts[1].key in path else None

        with pytest.raises(TransientError):
            await finaliser.finish(batch_id)
        assert (await yard.state.batches.get(batch_id)).status is Status.FINALIZING
        record = await yard.state.batches.get(batch_id)
        while record.status is Status.FINALIZING:
            with suppress(TransientError):
                await finaliser.finish(batch_id)
            record = await yard.state.batches.get(batch_id)
        storage.close()

    assert record.status is Status.IN_PROGRESS
    assert [claim.index for claim in await yard.claim(batch_id)] == [1]

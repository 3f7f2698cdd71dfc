"""Batches whose bad lines are errors of their rows, from the plan to the error file."""

import json
from pathlib import Path

import pytest

from dispatcher.finaliser import Finaliser
from gateway.result_file import can_run
from shared.catalog import Catalog
from shared.catalog_file import load_catalog
from shared.ledger.copies import copies_prefix
from shared.lifecycle import Event, Status
from shared.openai.shapes import Batch
from shared.state import State
from shared.storage import Storage
from tests.integration.dispatcher.conftest import (
    OUTPUT_SECONDS,
    SMALL_ENGINES,
    BatchYard,
    a_planner,
    good,
    line,
    run_slice,
    shuffled,
)
from worker.outcomes import Outcome

#: Half of the lines of a row are bad, the first one among them.
_INPUT = b"\n".join(
    [
        b"{",
        line("row-1"),
        line("row-1"),
        b"",
        line("row-3"),
        line("row-4", model="nobody"),
        line("row-5"),
        b'{"custom_id": "row-6"}',
        line("row-7"),
    ]
)
_CODES = {
    None: "invalid_json_line",
    "row-1": "duplicate_custom_id",
    "row-4": "model_not_found",
    "row-6": "missing_required_parameter",
}


@pytest.fixture
def lenient(state: State, storage: Storage, catalog: Catalog) -> BatchYard:
    planner = a_planner(state, storage, catalog, strict_input=False)
    return BatchYard(
        state, storage, planner, Finaliser(state, storage, output_seconds=OUTPUT_SECONDS)
    )


async def _run(yard: BatchYard, batch_id: str) -> list[Outcome]:
    """Run all slices as a lane job does, with an engine that answers every row that it gets."""
    return [
        await run_slice(yard, claim, lambda row: good(f"{row}"))
        for claim in await yard.claim(batch_id)
    ]


async def _ended(yard: BatchYard, batch_id: str) -> Batch:
    await yard.finaliser.finish(batch_id)
    return (await yard.state.batches.get(batch_id)).to_openai()


async def test_bad_lines_get_errors_and_the_other_rows_run(lenient: BatchYard) -> None:
    batch_id = await lenient.plan(_INPUT)

    await _run(lenient, batch_id)

    ended = await _ended(lenient, batch_id)
    output = await lenient.parsed(ended.output_file_id)
    errors = await lenient.parsed(ended.error_file_id)
    assert ended.status == Status.COMPLETED
    assert ended.request_counts.model_dump() == {"total": 8, "completed": 4, "failed": 4}
    assert [one["custom_id"] for one in output] == ["row-1", "row-3", "row-5", "row-7"]
    assert {one["custom_id"]: one["error"]["code"] for one in errors} == _CODES
    # As the plan of a strict yard names them.
    assert [one["error"]["line"] for one in errors] == [1, 3, 6, 8]
    assert {one["response"] for one in errors} == {None}
    assert not any(can_run(json.dumps(one).encode()) for one in errors)
    rows = [int(one["id"][-8:], 16) for one in output + errors]
    assert sorted(rows) == list(range(8))


async def test_a_good_line_with_an_error_in_it_runs_beside_bad_ones(lenient: BatchYard) -> None:
    # As somebody has it who makes requests of results.
    good_one = json.dumps({**json.loads(line("row-1")), "error": None}).encode()
    batch_id = await lenient.plan(b"\n".join([b"{", good_one]))

    await _run(lenient, batch_id)

    ended = await _ended(lenient, batch_id)
    assert ended.request_counts.model_dump() == {"total": 2, "completed": 1, "failed": 1}
    [output] = await lenient.parsed(ended.output_file_id)
    assert output["custom_id"] == "row-1"


async def test_rows_that_begin_alike_are_grouped_around_bad_lines(
    state: State, storage: Storage, tmp_path: Path
) -> None:
    (tmp_path / "catalog.yaml").write_text(SMALL_ENGINES)
    catalog = load_catalog(tmp_path / "catalog.yaml")
    planner = a_planner(state, storage, catalog, strict_input=False)
    yard = BatchYard(
        state, storage, planner, Finaliser(state, storage, output_seconds=OUTPUT_SECONDS)
    )
    lines = shuffled(prefixes=10, rows=4).splitlines()
    lines[3:5] = [b"{", line("row-0")]

    batch_id = await yard.plan(b"\n".join(lines))
    assert any(slice_.mask for slice_ in await yard.slices(batch_id))
    await _run(yard, batch_id)

    ended = await _ended(yard, batch_id)
    output = await yard.parsed(ended.output_file_id)
    errors = await yard.parsed(ended.error_file_id)
    assert [one["custom_id"] for one in errors] == [None, "row-0"]
    names = [f"row-{row}" for row in range(40) if row not in (3, 4)]
    assert [one["custom_id"] for one in output] == names
    assert [one["response"]["body"]["choices"] for one in output] == [
        [name.removeprefix("row-")] for name in names
    ]


async def test_bad_lines_of_a_batch_that_is_cancelled_are_named_as_far_as_they_have_names(
    lenient: BatchYard,
) -> None:
    batch_id = await lenient.plan(_INPUT)
    await lenient.state.apply(batch_id, Event.CANCEL_REQUESTED)

    ended = await _ended(lenient, batch_id)

    errors = await lenient.parsed(ended.error_file_id)
    names = [None, "row-1", "row-1", "row-3", "row-4", "row-5", "row-6", "row-7"]
    assert [one["custom_id"] for one in errors] == names


async def test_a_batch_whose_errors_are_lost_is_not_run_without_them(lenient: BatchYard) -> None:
    """Its bad lines would go to the engine."""
    batch_id = await lenient.plan(_INPUT)
    await lenient.storage.remove(await lenient.storage.keys(copies_prefix(batch_id)))

    assert set(await _run(lenient, batch_id)) == {Outcome.INPUT_LOST}


async def test_a_line_that_looks_like_an_error_is_a_request(yard: BatchYard) -> None:
    """Only a plan puts errors into lines."""
    body = line("row-0").replace(b'{"custom_id"', b'{"error": {"code": "x"}, "custom_id"', 1)
    batch_id = await yard.plan(body)

    await _run(yard, batch_id)

    ended = await _ended(yard, batch_id)
    assert ended.request_counts.model_dump() == {"total": 1, "completed": 1, "failed": 0}


async def test_a_file_without_a_good_line_fails_as_ever(lenient: BatchYard) -> None:
    batch_id = await lenient.plan(b"{\n" + line("a", model="nobody"))

    record = await lenient.state.batches.get(batch_id)

    assert record.status is Status.FAILED
    errors = record.to_openai().errors
    assert errors is not None
    assert [error.code for error in errors.data] == ["invalid_json_line", "model_not_found"]

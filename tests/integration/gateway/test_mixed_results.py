"""The results so far of a batch whose rows take turns on several lanes, from any offset."""

import json
import random
from pathlib import Path

import pytest

from dispatcher.finaliser import Finaliser
from shared.catalog_file import load_catalog
from shared.state import State
from shared.storage import Storage
from tests.integration.dispatcher.conftest import (
    CATALOG,
    BatchYard,
    Result,
    a_planner,
    bad,
    good,
    line,
)
from tests.integration.gateway.conftest import Caller

ROWS = 30
OFFSETS = range(0, ROWS, 4)


@pytest.fixture
def mixed(gateway_state: State, bucket: Storage, tmp_path: Path) -> BatchYard:
    (tmp_path / "yard.yaml").write_text(CATALOG)
    catalog = load_catalog(tmp_path / "yard.yaml")
    planner = a_planner(gateway_state, bucket, catalog, mixed_batches=True)
    return BatchYard(
        gateway_state, bucket, planner, Finaliser(gateway_state, bucket, output_seconds=60)
    )


async def test_any_offset_means_the_same_line_before_and_after_the_end(
    acme: Caller, mixed: BatchYard
) -> None:
    dice = random.Random(7)
    lines = [line(f"row-{row}", model=dice.choice(["m", "few", "other"])) for row in range(ROWS)]
    batch_id = await mixed.plan(b"\n".join(lines), tenant=acme.tenant)
    claims = await mixed.claim(batch_id)
    assert len(claims) > 10
    dice.shuffle(claims)
    done: set[int] = set()

    for claim in claims:
        await mixed.commit(claim, [_result(row) for row in claim.slice.row_numbers])
        done |= set(claim.slice.row_numbers)
        first_missing = next(row for row in range(ROWS + 1) if row not in done)
        assert await _names(acme, batch_id, "input") == _rows(0, first_missing)
    running = [await _names(acme, batch_id, "input", offset) for offset in OFFSETS]
    came = await _names(acme, batch_id, "completion")
    came_from = [await _names(acme, batch_id, "completion", offset) for offset in OFFSETS]
    await mixed.finaliser.finish(batch_id)

    assert running == [_rows(offset, ROWS) for offset in OFFSETS]
    assert came == [f"row-{row}" for claim in claims for row in claim.slice.row_numbers]
    assert came_from == [came[offset:] for offset in OFFSETS]
    assert [await _names(acme, batch_id, "input", offset) for offset in OFFSETS] == running
    assert [await _names(acme, batch_id, "completion", offset) for offset in OFFSETS] == came_from


def _result(row: int) -> Result:
    return bad() if row % 5 == 0 else good(f"answer {row}" * row)


def _rows(first: int, end: int) -> list[str]:
    return [f"row-{row}" for row in range(first, end)]


async def _names(caller: Caller, batch_id: str, order: str, offset: int = 0) -> list[str]:
    answer = await caller.http.get(
        f"/v1/batches/{batch_id}/results", params={"order": order, "offset": offset}
    )
    assert answer.status_code == 200, answer.text
    return [json.loads(text)["custom_id"] for text in answer.text.split("\n") if text]

"""Rows that kill the engine are found at a limited cost, while everything else goes on."""

from cli.dead_letters.row_replays import replay
from shared.lifecycle import Status
from tests.eventually import eventually
from tests.integration.worker.conftest import CATALOG, LANE, StubFleet, requests


async def test_of_ten_thousand_rows_the_one_that_kills_is_found_with_five_starts(
    stub_fleet: StubFleet,
) -> None:
    fleet, engine = stub_fleet, stub_fleet.engine
    engine.hold_at = 2
    batch_id = await fleet.submit(requests(10_000, deadly=[4321]))
    await eventually(lambda: len(engine.deaths) == 2)
    # Another tenant's comes while it is searched for.
    other = await fleet.submit(requests(50, name="other"), tenant="globex")
    await eventually(lambda: _is_ready(fleet, other))
    engine.may_start.set()

    record, late = await fleet.end_of(batch_id), await fleet.end_of(other)

    output, [error] = await fleet.results(record, "output"), await fleet.results(record, "error")
    assert record.status is Status.COMPLETED
    assert [line["custom_id"] for line in output] == [
        f"row-{row}" for row in range(10_000) if row != 4321
    ]
    assert error["custom_id"] == "row-4321"
    assert error["response"]["status_code"] == 500
    assert error["response"]["body"]["error"]["code"] == "engine_died"
    assert "each of the 4 times" in error["response"]["body"]["error"]["message"]
    # The first start, and one after each death of the one row.
    assert (engine.starts, len(engine.deaths)) == (5, 4)
    [dead] = await fleet.state.dead_rows.all()
    assert (dead.id, dead.batch_id, dead.line) == (error["id"], batch_id, 4322)
    assert (dead.custom_id, dead.deaths, dead.tenant) == ("row-4321", 4, "acme")
    assert "died" in dead.reason or "lost" in dead.reason
    # Nothing that an engine had answered before it died has run again.
    assert engine.rows_run_after_their_answer() == {}
    # The other one went on meanwhile, and no row of it was suspected for long.
    assert len(await fleet.results(late, "output")) == 50
    began = min(run["at"] for run in engine.runs() if run["batch"] == other)
    assert began < engine.deaths[-1]
    assert await fleet.state.lanes.suspects_count(LANE) == 0

    # Run again, alone, once it does no harm any more.
    engine.mend()
    again = await fleet.end_of(await replay(fleet.state, fleet.storage, dead))
    assert [line["custom_id"] for line in await fleet.results(again, "output")] == ["row-4321"]
    assert (again.status, again.number("total")) == (Status.COMPLETED, 1)
    assert again.tenant == "acme"
    assert await fleet.state.dead_rows.all() == []


async def test_a_replayed_row_that_kills_again_costs_two_engines_and_no_stranger_a_strike(
    stub_fleet: StubFleet,
) -> None:
    fleet, engine = stub_fleet, stub_fleet.engine
    await fleet.end_of(await fleet.submit(requests(20, deadly=[7])))
    [first] = await fleet.state.dead_rows.all()
    assert (engine.starts, len(engine.deaths)) == (5, 4)
    engine.hold_at = 5
    early = await fleet.submit(requests(1000, name="early"), tenant="globex")
    replay_id = await replay(fleet.state, fleet.storage, first)
    await eventually(lambda: len(engine.deaths) == 5)
    # Others come between its two deaths as well.
    late = await fleet.submit(requests(1000, name="late"), tenant="globex")
    await eventually(lambda: _is_ready(fleet, late))
    engine.may_start.set()

    replayed, *strangers = [await fleet.end_of(one) for one in (replay_id, early, late)]

    [error] = await fleet.results(replayed, "error")
    assert (replayed.status, replayed.number("total")) == (Status.COMPLETED, 1)
    assert error["response"]["body"]["error"]["code"] == "engine_died"
    assert "each of the 2 times" in error["response"]["body"]["error"]["message"]
    assert (engine.starts, len(engine.deaths)) == (7, 6)
    [dead] = await fleet.state.dead_rows.all()
    assert (dead.batch_id, dead.line, dead.deaths) == (replayed.id, 1, 2)
    for stranger in strangers:
        assert len(await fleet.results(stranger, "output")) == 1000
        assert await fleet.strikes_of(stranger.id) == {}


async def test_of_a_thousand_rows_the_one_that_hangs_is_found_with_five_starts(
    stub_fleet: StubFleet,
) -> None:
    fleet, engine = stub_fleet, stub_fleet.engine

    record = await fleet.end_of(await fleet.submit(requests(1000, hanging=[321])))

    output, [error] = await fleet.results(record, "output"), await fleet.results(record, "error")
    assert record.status is Status.COMPLETED
    assert [line["custom_id"] for line in output] == [
        f"row-{row}" for row in range(1000) if row != 321
    ]
    assert error["custom_id"] == "row-321"
    assert error["response"]["body"]["error"]["code"] == "engine_died"
    # It ended itself each time, because it had rows and gave nothing.
    assert (engine.starts, len(engine.deaths)) == (5, 4)
    [dead] = await fleet.state.dead_rows.all()
    assert (dead.id, dead.line, dead.deaths) == (error["id"], 322, 4)
    assert "hung" in dead.reason
    assert await fleet.state.lanes.suspects_count(LANE) == 0


async def test_an_engine_that_dies_of_everything_fails_its_lane_until_the_catalog_is_corrected(
    stub_fleet: StubFleet,
) -> None:
    fleet = stub_fleet
    hopeless = await fleet.submit(requests(6, deadly=range(6)))
    died = await fleet.end_of(hopeless)
    fleet.catalog_file.write_text(CATALOG.replace("SOURCE", "/nowhere/m"))
    absent = await fleet.end_of(await fleet.submit(requests(3)))
    fleet.catalog_file.write_text(CATALOG.replace("SOURCE", "any"))

    mended = await fleet.end_of(await fleet.submit(requests(3)))

    assert died.status is Status.FAILED
    assert died.fields["first_error"] == (
        "The engine died 5 times in a row, and gave no result between."
    )
    # One among all of them, and those that count.
    assert len(fleet.engine.deaths) == 6
    assert (absent.status, absent.fields["first_error"]) == (
        Status.FAILED,
        "The model's folder /nowhere/m does not exist on this machine.",
    )
    assert mended.status is Status.COMPLETED
    assert len(await fleet.results(mended, "output")) == 3


async def _is_ready(fleet: StubFleet, batch_id: str) -> bool:
    candidates = await fleet.state.lanes.candidates(LANE, slices_per_batch=1)
    return any(one.is_ready and one.batch_id == batch_id for one in candidates)

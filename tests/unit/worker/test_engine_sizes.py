import pytest

from shared.catalog import Model
from worker.engine_sizes import mappers_of_wave, rows_ahead, rows_at_once, rows_of_call


@pytest.mark.parametrize(("engine", "seats"), [({}, 256), ({"max_num_seqs": 8}, 8)])
def test_the_plan_knows_how_many_rows_an_engine_computes_at_once(
    engine: dict[str, int], seats: int
) -> None:
    model = Model(name="m", pools=("gpu",), engine=engine)

    assert model.seats == rows_at_once(model) == seats


@pytest.mark.parametrize(
    ("processors", "asked", "mappers"), [(2, None, 1), (8, None, 2), (64, None, 2), (2, 4, 4)]
)
def test_a_wave_has_two_processes_on_a_large_machine_unless_the_settings_say_otherwise(
    processors: int, asked: int | None, mappers: int
) -> None:
    assert mappers_of_wave(processors, asked) == mappers


@pytest.mark.parametrize(
    ("seats", "runner", "rows"),
    [(8, None, 16), (256, None, 64), (4096, None, 256), (64, "pooling", 64), (512, "pooling", 256)],
)
def test_a_call_brings_more_rows_where_a_row_takes_one_step(
    seats: int, runner: str | None, rows: int
) -> None:
    engine = {"max_num_seqs": seats} | ({"runner": runner} if runner else {})

    assert rows_of_call(Model(name="m", pools=("gpu",), engine=engine)) == rows


@pytest.mark.parametrize(("runner", "rows"), [(None, 2 * 3 * 256), ("pooling", 4 * 3 * 256)])
def test_more_rows_are_on_their_way_where_a_row_takes_one_step(
    runner: str | None, rows: int
) -> None:
    engine = {"runner": runner} if runner else {}

    assert rows_ahead(Model(name="m", pools=("gpu",), engine=engine, max_replicas=3)) == rows

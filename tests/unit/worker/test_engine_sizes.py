import pytest

from shared.catalog import Model
from worker.engine_sizes import rows_at_once


@pytest.mark.parametrize(("engine", "seats"), [({}, 256), ({"max_num_seqs": 8}, 8)])
def test_the_plan_knows_how_many_rows_an_engine_computes_at_once(
    engine: dict[str, int], seats: int
) -> None:
    model = Model(name="m", pools=("gpu",), engine=engine)

    assert model.seats == rows_at_once(model) == seats

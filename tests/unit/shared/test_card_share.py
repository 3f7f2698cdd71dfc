from hypothesis import given
from hypothesis import strategies as st

from shared.card_share import card_share, memory_share, share_problems
from shared.catalog import Pool


def _pool(gpus: float) -> Pool:
    return Pool(resources={"GPU": gpus})


@given(st.integers(1, 100))
def test_the_engines_on_a_card_together_take_no_more_memory_than_one_alone(engines: int) -> None:
    pool = _pool(1 / engines)

    assert engines * memory_share(pool) <= memory_share(_pool(1)) == 0.92
    assert engines * memory_share(pool) > 0.9


def test_whole_cards_are_not_shared() -> None:
    for pool in (_pool(1), _pool(4), Pool(accelerator_type="H100"), Pool(resources={"CPU": 1})):
        assert card_share(pool) == 1
        assert not list(share_problems(pool, {"tensor_parallel_size": 4}))


def test_an_engine_may_take_less_than_its_share_of_the_memory() -> None:
    assert not list(share_problems(_pool(0.5), {"gpu_memory_utilization": 0.3}))

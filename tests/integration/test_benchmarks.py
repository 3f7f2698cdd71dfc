"""What measures is run too, in small: it calls what nobody else calls that way."""

import pytest

from benchmarks.index_growth import index_growth
from benchmarks.rebuild_proof import differences, hear, take
from shared.lifecycle import Event
from shared.state import State
from tests.batches import LANE, in_progress


@pytest.mark.usefixtures("redis_url")
def test_the_index_is_measured() -> None:
    figures = index_growth(many=1_100, times=1)

    assert len(figures) == 7
    assert all(figure.value > 0 and figure.baseline for figure in figures)


async def test_what_is_not_as_before_a_rebuild_is_seen(own_state: State) -> None:
    one, other = await in_progress(own_state), await in_progress(own_state)
    told = await hear(own_state)
    before = await take(own_state, [one, other])

    same = await differences(own_state, before, told, unknown=set(), lane=LANE)
    await own_state.apply(one, Event.CANCEL_REQUESTED)
    broken = await differences(own_state, before, told, unknown={other}, lane=LANE)

    assert same == []
    assert broken == [
        f"{one} has other values of ['cancelling_at', 'status']",
        f"{one} runs, and its lane does not know",
        f"the end of {other} is not told again",
    ]

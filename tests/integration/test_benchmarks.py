"""The benchmarks run too, on a small scale, because they call code that no test calls that way."""

import pytest

from benchmarks.index_growth import index_growth
from benchmarks.rebuild_proof import differences, take, take_events
from benchmarks.redis_bytes import redis_bytes
from benchmarks.versus import Case, batch_lines
from benchmarks.vllm_serve import flag
from shared.lifecycle import Event
from shared.state import State
from tests.batches import LANE, in_progress


@pytest.mark.parametrize(
    ("value", "written"),
    [(True, "--a-b"), (False, "--no-a-b"), (8, "--a-b=8"), ({"c": [True]}, '--a-b={"c": [true]}')],
)
def test_an_engines_arguments_are_written_as_vllms_commands_take_them(
    value: object, written: str
) -> None:
    assert flag("a_b", value) == written


def test_the_batches_of_a_case_have_rows_of_their_own() -> None:
    case = Case(batches=3, rows=4)

    batches = [batch_lines(number, case, 16) for number in range(case.batches)]

    texts = [row["body"]["messages"][0]["content"] for batch in batches for row in batch]
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert len(set(texts)) == 12
    assert {row["body"]["max_tokens"] for batch in batches for row in batch} == {16}


@pytest.mark.usefixtures("redis_url")
def test_the_index_is_measured() -> None:
    figures = index_growth(many=1_100, times=1)

    assert len(figures) == 7
    assert all(figure.value > 0 and figure.baseline for figure in figures)


@pytest.mark.usefixtures("redis_url")
def test_batches_and_rows_take_no_more_of_redis_than_the_documents_say() -> None:
    figures = redis_bytes(batches=300, rows=25_600)

    assert [figure.name for figure in figures if not figure.holds] == []
    live, ended, left, alone, *_ = (figure.value for figure in figures)
    # Redis grows with what is alive, and with files until they expire.
    assert alone < left < min(live, ended)
    assert 20 * alone < live + ended


async def test_what_is_not_as_before_a_rebuild_is_seen(own_state: State) -> None:
    one, other = await in_progress(own_state), await in_progress(own_state)
    events = await take_events(own_state)
    before = await take(own_state, [one, other])

    same = await differences(own_state, before, events, unknown=set(), lane=LANE)
    await own_state.apply(one, Event.CANCEL_REQUESTED)
    broken = await differences(own_state, before, events, unknown={other}, lane=LANE)

    assert same == []
    assert broken == [
        f"{one} has different values of ['cancelling_at', 'status']",
        f"{one} runs, but its lane does not know it",
        f"the end of {other} is not published again",
    ]

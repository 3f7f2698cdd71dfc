"""The benchmarks run too, on a small scale, because they call code that no test calls that way."""

from pathlib import Path

import pytest

from benchmarks.index_growth import index_growth
from benchmarks.rebuild_proof import differences, take, take_events
from benchmarks.redis_bytes import redis_bytes
from benchmarks.versus import batch_lines
from benchmarks.versus_table import (
    BATCHYARD,
    RAY_DATA,
    RUN_BATCH,
    SYNC,
    Case,
    Comparison,
    Times,
    publish,
    published,
    tables,
)
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
    later = batch_lines(0, case, 16, first=12)
    assert not {row["body"]["messages"][0]["content"] for row in later} & set(texts)
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


def test_what_was_measured_before_is_added_to(tmp_path: Path) -> None:
    comparison = Comparison(tokens=8, cores=2)
    comparison.add(Case(1, 20), {SYNC: Times(20, 1.0, 1, 1.0)})

    publish(comparison, tmp_path / "results.json")

    assert published(tmp_path / "results.json") == comparison


def test_a_case_is_compared_by_its_medians_and_its_aims() -> None:
    comparison = Comparison(tokens=8, cores=2)
    for case, seconds in ((Case(1, 20), 1.0), (Case(50, 4), 10.0)):
        for turn in (1, 2, 9):
            comparison.add(
                case,
                {
                    BATCHYARD: Times(30, seconds * turn, case.batches, 1.5),
                    SYNC: Times(20, seconds, case.batches, 1.0),
                    RAY_DATA: Times(5, 60 * case.batches, 1, 1.0),
                    RUN_BATCH: Times(0, 100 * case.batches, 1, 2.0),
                },
            )

    lines = tables(comparison).splitlines()

    assert lines[2].startswith("| 1 x 20 | 2 s | 1 s (0.5 x) | 21 s (10 x) | 60 s (30 x) |")
    assert lines[3].startswith("| 50 x 4 | 20 s | 10 s (0.5 x) | 1,010 s (50 x) |")
    assert [line.rpartition(" | ")[2] for line in lines[7:14]] == [
        "yes |", "no |", "yes |", "yes |", "no |", "yes |", "yes |"
    ]  # fmt: skip
    assert "medians of 3 turns" in lines[-1]
    assert "1.0 to 2.0 s by the clock" in lines[-1]

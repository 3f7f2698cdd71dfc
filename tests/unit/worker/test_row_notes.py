from hypothesis import given
from hypothesis import strategies as st

from worker.row_notes import SAMPLES, RowNote, RowNotes

_ROWS = st.lists(
    st.builds(
        RowNote,
        st.integers(0, 10**6),
        st.sampled_from([200, 400, 500]),
        st.floats(0, 3600, allow_nan=False),
    ),
    max_size=40,
)


def _notes(rows: list[RowNote]) -> RowNotes:
    notes = RowNotes()
    for row in rows:
        notes.add(row)
    return notes


def test_a_row_is_slow_if_it_took_twice_as_long_as_the_middle_one_and_a_second_longer() -> None:
    seconds = [0.1, 0.1, 0.2, 0.2, 0.3, 0.9, 1.3]

    slow = _notes([RowNote(number, 200, took) for number, took in enumerate(seconds)]).slow

    assert [row.number for row in slow] == [6]


def test_rows_that_are_all_slow_are_none() -> None:
    assert _notes([RowNote(number, 200, 60.0) for number in range(16)]).slow == []


def test_the_first_failed_and_the_slowest_rows_are_named() -> None:
    fast = [RowNote(number, 500 if number > 4 else 200, 1.0) for number in range(20)]
    late = [RowNote(20 + number, 200, 10.0 + number) for number in range(5)]

    named = [(name, row.number) for name, row in _notes(fast + late).samples()]

    assert named == [
        *(("row.failed", number) for number in (5, 6, 7)),
        *(("row.slow", number) for number in (24, 23, 22)),
    ]


@given(_ROWS)
def test_few_rows_are_named_however_many_there_are(rows: list[RowNote]) -> None:
    notes = _notes(rows)
    named = list(notes.samples())

    assert len(named) <= 2 * SAMPLES
    assert len(notes.failed) == sum(row.status >= 400 for row in rows)
    assert len(notes.slow) <= len(rows) / 2

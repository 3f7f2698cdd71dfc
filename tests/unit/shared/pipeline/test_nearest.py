"""The nearest rows of a table."""

import array
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.pipeline.nearest import Near, Vectors

_numbers = st.integers(-8, 8).map(float)
_vectors = st.lists(st.lists(_numbers, min_size=3, max_size=3), min_size=1, max_size=40)


def _table(vectors: list[list[float]], metric: str = "dot") -> Vectors:
    numbers = array.array("f", [number for vector in vectors for number in vector])
    return Vectors(numbers, len(vectors[0]), metric)  # type: ignore[arg-type]  # one of the two


def _nearest(table: Vectors, vector: list[float], k: int) -> list[Near]:
    found = table.vector(vector)
    assert found is not None
    [near] = table.nearest([found], k)
    return near


@given(vectors=_vectors, wanted=st.lists(_numbers, min_size=3, max_size=3), k=st.integers(1, 50))
def test_they_are_those_that_a_sort_of_all_finds(
    vectors: list[list[float]], wanted: list[float], k: int
) -> None:
    scores = [sum(a * b for a, b in zip(one, wanted, strict=True)) for one in vectors]
    order = sorted(range(len(vectors)), key=lambda row: (-scores[row], row))[:k]

    found = _nearest(_table(vectors), wanted, k)

    assert found == [Near(row, scores[row]) for row in order]


def test_the_cosine_does_not_know_lengths() -> None:
    table = _table([[9.0, 9.0], [0.0, 0.1], [0.0, 0.0]], "cosine")

    found = _nearest(table, [0.0, 5.0], 3)

    assert [one.row for one in found] == [1, 0, 2]
    assert [one.score for one in found] == pytest.approx([1.0, math.sqrt(0.5), 0.0])


@pytest.mark.parametrize(
    "value",
    [None, [], [1.0], [1.0, "x"], "ab", [1.0, 1e300], [1.0, 10**400], [1.0, math.inf], [1.0, None]],
)
def test_what_is_no_vector_of_the_tables_is_none(value: object) -> None:
    assert _table([[1.0, 2.0]]).vector(value) is None


def test_many_rows_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.pipeline.nearest._SCORES_AT_ONCE", 5)
    table = _table([[1.0, 0.0], [0.0, 1.0]])
    vectors = [table.vector([float(n), 1.0]) for n in range(9)]

    found = table.nearest([one for one in vectors if one is not None], 1)

    assert [near.row for [near] in found] == [1, *[0] * 8]

import pytest

from cli.demo.nearest import nearest, similarity


def test_the_nearest_come_first() -> None:
    vectors = {"east": [2.0, 0.0], "north": [0.0, 3.0], "north-east": [1.0, 1.0]}

    found = nearest([0.0, 1.0], vectors, limit=2)

    assert ["north", "north-east"] == [name for _, name in found]


def test_length_does_not_matter() -> None:
    assert similarity([1.0, 2.0], [10.0, 20.0]) == pytest.approx(1.0)


def test_a_vector_of_zeros_is_like_nothing() -> None:
    assert similarity([0.0, 0.0], [1.0, 0.0]) == 0.0

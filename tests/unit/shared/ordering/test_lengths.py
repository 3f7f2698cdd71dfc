from math import inf

import pytest

from shared.ordering.lengths import Lengths


def test_nothing_is_expected_before_the_first_answer() -> None:
    assert Lengths().expect("a", 1) == inf


@pytest.mark.parametrize("samples", [10, 100])
def test_a_length_is_one_that_hardly_any_answer_of_the_kind_exceeds(samples: int) -> None:
    lengths = Lengths()
    for _ in range(samples):
        lengths.note("a", 1, 100)
        lengths.note("a", 2, 1000)

    assert 100 <= lengths.expect("a", 1) <= 200
    assert 1000 <= lengths.expect("a", 2) <= 2000


def test_the_last_batches_are_told_with_their_answers() -> None:
    lengths = Lengths()
    for batch, kind, tokens in (("a", 1, 10), ("b", 1, 5), ("a", 2, 20), ("c", 1, 7)):
        lengths.note(batch, kind, tokens)

    assert list(lengths.latest(2)) == [("c", 1, 7), ("a", 2, 30)]


def test_rare_long_answers_decide() -> None:
    lengths = Lengths()
    for tokens in [10] * 8 + [900] * 2:
        lengths.note("a", 1, tokens)

    assert lengths.expect("a", 1) >= 900


def test_a_kind_without_answers_may_be_long() -> None:
    lengths = Lengths()
    lengths.note("a", 1, 100)

    assert lengths.expect("a", 2) == inf


def test_the_first_answer_of_a_kind_says_more_than_those_of_the_others() -> None:
    lengths = Lengths()
    for _ in range(100):
        lengths.note("a", 1, 1000)
    lengths.note("a", 2, 10)

    assert lengths.expect("a", 2) <= 20


def test_batches_are_learned_apart() -> None:
    lengths = Lengths()
    lengths.note("a", 1, 100)

    assert lengths.expect("b", 1) == inf


def test_only_batches_without_answers_for_long_are_forgotten() -> None:
    lengths = Lengths()
    for n in range(1500):
        lengths.note("steady", 1, 100)
        lengths.note(f"batch-{n}", 1, 100)

    assert lengths.expect("batch-0", 1) == inf
    assert max(lengths.expect("steady", 1), lengths.expect("batch-1499", 1)) < inf


def test_no_length_is_too_long() -> None:
    lengths = Lengths()
    lengths.note("a", 1, 1 << 40)

    assert lengths.expect("a", 1) < inf

import pytest

from worker.step_times import StepTimes

STEP_TOKENS = 8192


def times(*, plain: float = 4.0, of_token: float = 0.001, added: float = 8.0) -> StepTimes:
    """An engine that has run steps of each kind."""
    found = StepTimes(STEP_TOKENS)
    for number in range(20):
        tokens = 100 + 10 * number
        found.note(plain, 0)
        found.note(plain + added + of_token * tokens, tokens)
    found.note(plain + added + of_token * 8000, 8000)
    return found


@pytest.mark.parametrize(("added", "overhead"), [(8.0, 2.0), (1.0, 0.25), (0.0, 0.0)])
def test_what_prompts_add_besides_their_tokens_is_told_as_a_part_of_a_step(
    added: float, overhead: float
) -> None:
    assert times(added=added).overhead == pytest.approx(overhead, abs=1e-9)


def test_steps_with_prompts_that_are_shorter_than_others_add_nothing() -> None:
    assert times(added=-1.0).overhead == 0


def test_nothing_is_said_as_long_as_a_kind_of_step_is_missing() -> None:
    found = StepTimes(STEP_TOKENS)
    for _ in range(20):
        found.note(4.0, 0)
        found.note(12.0, 300)

    assert found.overhead is None
    found.note(40.0, 8000)
    assert found.overhead == pytest.approx((12.0 - 4.0 - 300 * 28 / 7700) / 4)


def test_new_times_take_the_place_of_old_ones() -> None:
    found = times(added=8.0)
    for _ in range(1000):
        found.note(16.0, 0)
        found.note(24.0, 195)
        found.note(31.805, 8000)

    assert found.overhead == pytest.approx(0.5, abs=0.02)

"""The short form of `benchmarks.engine_waits`: what giants cost others, in virtual time."""

from benchmarks.engine_waits import CASES, Scale, costs, filled, live_costs


def test_a_small_batch_beside_a_giant_takes_twice_as_long_as_alone_at_most() -> None:
    found = costs(CASES["another tenant's giant"], Scale(tries=6))

    assert found.p95 <= 2
    # Few tries take a short time, and the giant's rows end together.
    assert found.giants_rate >= 0.95


def test_the_next_token_of_a_live_call_beside_a_giant_takes_three_times_as_long_at_most() -> None:
    found = live_costs(Scale(prompt=(100, 100), live_seconds=8.0))

    assert found.next_p99 <= 3
    assert found.giants_rate >= 0.95


def test_on_a_small_model_few_steps_have_prompts_and_the_seats_are_full_all_the_same() -> None:
    found = filled(Scale(prompt=(100, 100), tokens=64), seconds=10.0)

    assert found.mixed_part <= 0.3
    assert found.filled_part >= 0.9

from dispatcher.feeding import Feeding
from shared.state import Backlog

WAITING = Backlog(batches=3, newest="b3", ready=0)


def after(seconds: float) -> Feeding:
    """A list of ten slices that was put in order at 100.0, and took so long."""
    return Feeding(100.0, seconds, WAITING, 10)


def test_a_full_list_stays_for_a_second_while_nothing_comes() -> None:
    same = WAITING._replace(ready=10)

    assert after(0.001).is_enough(same, 100.9)
    assert not after(0.001).is_enough(same, 101.1)


def test_a_batch_that_comes_is_put_in_order_at_once() -> None:
    more = Backlog(batches=4, newest="b4", ready=10)

    assert not after(0.001).is_enough(more, 100.02)


def test_a_list_that_drains_is_filled() -> None:
    assert not after(0.001).is_enough(WAITING._replace(ready=7), 100.02)


def test_a_list_that_took_long_rests_ten_times_as_long_while_batches_keep_coming() -> None:
    more = Backlog(batches=4000, newest="b4000", ready=10)

    assert after(0.3).is_resting(more, 102.9)
    assert not after(0.3).is_resting(more, 103.1)


def test_a_batch_that_comes_meanwhile_does_not_wait_for_that() -> None:
    more = Backlog(batches=4000, newest="b4000", ready=10)

    assert not after(0.3).is_enough(more, 100.02)


def test_batches_that_came_meanwhile_were_put_in_and_the_list_rests_on() -> None:
    more = Backlog(batches=4000, newest="b4000", ready=10)
    fed = after(0.3).with_news(more, at=100.05, seconds=0.03, length=10)

    assert fed.is_enough(more, 102.9)
    assert fed.is_enough(more._replace(newest="b4001"), 100.1)
    assert not fed.is_enough(more._replace(newest="b4001"), 100.12)
    assert fed.is_resting(more, 102.9)
    assert not fed.is_enough(more, 103.1)


def test_a_list_that_runs_empty_does_not_rest() -> None:
    more = Backlog(batches=4000, newest="b4000", ready=5)

    assert not after(0.3).is_enough(more, 100.02)
    assert not after(0.3).is_resting(more, 100.02)

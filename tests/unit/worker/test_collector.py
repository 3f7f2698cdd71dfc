import gc

from worker.collector import collector_paused, pass_over_what_is_there


def test_the_collector_is_paused_for_a_while() -> None:
    with collector_paused():
        assert not gc.isenabled()

    assert gc.isenabled()


def test_what_is_there_is_looked_at_by_no_later_collection() -> None:
    there = [object()]
    try:
        pass_over_what_is_there()

        assert not any(one is there for one in gc.get_objects())
    finally:
        gc.unfreeze()

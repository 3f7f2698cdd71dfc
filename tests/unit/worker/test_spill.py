from worker.spill import Choice, PoolStatus, Spill

NOTHING, LOADS, RUNS = (
    PoolStatus(),
    PoolStatus(is_placed=True),
    PoolStatus(runs=True, is_placed=True),
)


def broken(reason: str) -> PoolStatus:
    return PoolStatus(failure=reason)


def test_the_first_pool_takes_the_rows_as_soon_as_it_runs() -> None:
    spill = Spill(10)

    assert spill.decide([NOTHING, NOTHING], 0) == Choice(None, 1, 10)
    assert spill.decide([LOADS, NOTHING], 5) == Choice(None, 1, None)
    assert spill.decide([RUNS, RUNS], 6) == Choice(0, 1, None)


def test_after_its_wait_the_next_pool_is_asked_besides() -> None:
    spill = Spill(10)
    spill.decide([NOTHING, NOTHING, NOTHING], 100)

    assert spill.decide([NOTHING, NOTHING, NOTHING], 109) == Choice(None, 1, 110)
    assert spill.decide([NOTHING, NOTHING, NOTHING], 110) == Choice(None, 2, 120)
    assert spill.decide([NOTHING, NOTHING, NOTHING], 120) == Choice(None, 3, None)
    assert spill.decide([NOTHING, NOTHING, NOTHING], 900) == Choice(None, 3, None)


def test_an_engine_that_loads_is_waited_for() -> None:
    spill = Spill(10)
    spill.decide([LOADS, NOTHING], 0)

    assert spill.decide([LOADS, NOTHING], 1000) == Choice(None, 1, None)
    assert spill.decide([NOTHING, NOTHING], 1009) == Choice(None, 1, 1010)


def test_an_engine_that_runs_elsewhere_is_used_while_the_first_one_has_no_room() -> None:
    spill = Spill(10)

    assert spill.decide([NOTHING, RUNS], 0) == Choice(1, 1, 10)
    assert spill.decide([NOTHING, RUNS], 10) == Choice(1, 2, None)
    assert spill.decide([RUNS, RUNS], 11) == Choice(0, 1, None)
    assert spill.decide([NOTHING, RUNS], 12) == Choice(1, 1, 22)


def test_the_next_work_begins_with_the_first_pool() -> None:
    spill = Spill(10)
    spill.decide([NOTHING, NOTHING], 0)
    spill.decide([NOTHING, NOTHING], 10)

    spill.reset()

    assert spill.decide([NOTHING, NOTHING], 50) == Choice(None, 1, 60)


def test_what_cannot_start_is_not_waited_for() -> None:
    spill = Spill(10)

    assert spill.decide([broken("no such model"), NOTHING], 0).requested == 2
    assert spill.decide([broken("no such model"), LOADS], 1) == Choice(None, 2, None)
    assert (
        spill.decide([broken("no such model"), broken("too small")], 2).failure == "no such model"
    )


def test_a_wait_of_nothing_asks_at_once() -> None:
    spill = Spill(0)

    assert spill.decide([LOADS, NOTHING], 0) == Choice(None, 1, None)
    assert spill.decide([NOTHING, NOTHING], 0) == Choice(None, 2, None)

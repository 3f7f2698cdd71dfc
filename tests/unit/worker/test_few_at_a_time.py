import asyncio
import sys

from shared.interpreter import let_threads_take_turns
from worker.few_at_a_time import Few, FewAtATime, StopBudget

COUNT, IN_A_HURRY = 3, 2
FEW = Few(COUNT, IN_A_HURRY)


async def test_a_few_are_done_before_the_loop_looks_at_what_has_come() -> None:
    done = list[int]()
    work = FewAtATime(done.append, FEW)
    for number in range(2 * COUNT + 1):
        work.add(number)

    assert done == []
    for so_far in (COUNT, 2 * COUNT, 2 * COUNT + 1):
        await asyncio.sleep(0)
        assert done == list(range(so_far))

    work.add(99)
    await asyncio.sleep(0)
    assert done[-1] == 99


async def test_fewer_are_done_while_somebody_is_in_a_hurry() -> None:
    done = list[int]()
    few = Few(COUNT, IN_A_HURRY)
    work = FewAtATime(done.append, few)
    for number in range(2 * COUNT + 1):
        work.add(number)

    with few.hurry(stops=False):
        with few.hurry(stops=False):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(done) == 2 * IN_A_HURRY
    await asyncio.sleep(0)
    assert len(done) == 2 * IN_A_HURRY + COUNT


async def test_others_stop_while_somebody_is_in_a_hurry() -> None:
    done = list[int]()
    few = Few(COUNT, IN_A_HURRY)
    work = FewAtATime(done.append, few)
    with few.hurry():
        work.add(1)
        waiting = asyncio.create_task(few.turn())
        with few.hurry():
            work.add(2, is_first=True)
        for _ in range(3):
            await asyncio.sleep(0)
        assert done == [2]
        assert not waiting.done()

    await waiting
    assert done == [2, 1]
    await few.turn()


async def test_others_stop_already_for_somebody_who_is_expected() -> None:
    few = Few()
    few.expect()
    few.expect()
    waiting = asyncio.create_task(few.turn())
    with few.hurry():
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()

    await waiting
    await few.turn()


async def test_others_go_on_if_nobody_comes() -> None:
    before = sys.getswitchinterval()
    try:
        let_threads_take_turns()
        usual = sys.getswitchinterval()
        few = Few(COUNT, IN_A_HURRY)
        few.expect()
        assert few.count == IN_A_HURRY
        assert sys.getswitchinterval() < usual

        async with asyncio.timeout(60):
            await few.turn()
        assert few.count == COUNT
        assert sys.getswitchinterval() == usual
    finally:
        sys.setswitchinterval(before)


async def test_nobody_is_expected_while_somebody_is_in_a_hurry() -> None:
    few = Few(COUNT, IN_A_HURRY)
    with few.hurry():
        few.expect()

    assert few.count == COUNT
    await few.turn()


async def test_what_others_had_begun_stops_too() -> None:
    done = list[int]()
    few = Few(COUNT, IN_A_HURRY)
    work = FewAtATime(done.append, few)
    for number in range(2 * COUNT):
        work.add(number)
    await asyncio.sleep(0)
    with few.hurry():
        for _ in range(3):
            await asyncio.sleep(0)
        # What the loop was about to do.
        assert len(done) == COUNT + IN_A_HURRY

    await asyncio.sleep(0)
    assert done == list(range(2 * COUNT))


async def test_others_go_on_however_long_the_hurry_lasts() -> None:
    few = Few()
    with few.hurry():
        async with asyncio.timeout(60):
            await few.turn()
        with few.hurry():
            waiting = asyncio.create_task(few.turn())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
    await waiting


async def test_others_are_not_stopped_when_they_have_stood_for_too_long() -> None:
    now = 0.0
    few = Few(clock=lambda: now)
    stops = 0
    while stops < 100:
        with few.hurry():
            waiting = asyncio.create_task(few.turn())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if waiting.done():
                break
            now += 0.04
        await waiting
        stops += 1

    assert 1 < stops < 10


def test_others_may_be_stopped_for_a_small_part_of_all_time() -> None:
    budget, now, stopped = StopBudget(0.0), 0.0, 0.0
    while now < 1000:
        seconds = budget.seconds(now)
        budget.spend(seconds)
        stopped += seconds
        now += seconds + 0.001

    assert 0.015 * now < stopped < 0.025 * now


def test_what_is_saved_is_for_a_few_stops() -> None:
    budget = StopBudget(0.0)
    hour = 3600.0
    stops = list[float]()
    while seconds := budget.seconds(hour):
        stops.append(seconds)
        budget.spend(seconds)

    assert 1 < len(stops) < 10
    # As long as a step of others lasts.
    assert max(stops) <= 0.05


async def test_threads_take_turns_sooner_while_somebody_is_in_a_hurry() -> None:
    few = Few()
    before = sys.getswitchinterval()
    try:
        let_threads_take_turns()
        usual = sys.getswitchinterval()
        with few.hurry():
            with few.hurry():
                pass
            assert sys.getswitchinterval() < usual
        assert sys.getswitchinterval() == usual
    finally:
        sys.setswitchinterval(before)


async def test_what_is_first_is_done_now() -> None:
    done = list[int]()
    work = FewAtATime(done.append, FEW)
    work.add(1)
    work.add(2, is_first=True)

    assert done == [2]
    await asyncio.sleep(0)
    assert done == [2, 1]


def test_without_few_all_is_done_now() -> None:
    done = list[int]()
    work = FewAtATime(done.append, None)
    work.add(1)

    assert done == [1]


async def test_what_cannot_be_done_keeps_nothing_else_from_being_done() -> None:
    done, told = list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["exception"]))

    def do(number: int) -> None:
        if number == 1:
            raise ValueError
        done.append(number)

    work = FewAtATime(do, FEW)
    for number in range(COUNT):
        work.add(number)
    for _ in range(2):
        await asyncio.sleep(0)

    assert done == [0, 2]
    assert [type(one) for one in told] == [ValueError]


async def test_what_waits_may_be_done_at_once_or_forgotten() -> None:
    done = list[int]()
    work = FewAtATime(done.append, FEW)
    work.add(1)
    work.do_all()
    assert done == [1]

    work.add(2)
    work.forget_all()
    await asyncio.sleep(0)
    assert done == [1]

    work.add(3)
    await asyncio.sleep(0)
    assert done == [1, 3]

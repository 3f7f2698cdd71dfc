import asyncio

from worker.few_at_a_time import Few, FewAtATime

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

    with few.hurry():
        with few.hurry():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(done) == 2 * IN_A_HURRY
    await asyncio.sleep(0)
    assert len(done) == 2 * IN_A_HURRY + COUNT


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

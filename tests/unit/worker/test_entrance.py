import asyncio

from shared.ordering.work import Work
from worker.engine_queue import Capacity, EngineQueue
from worker.entrance import Entrance, WithdrawnError

WORK = Work("batch", 0, "acme", 0, 0, 86_400, 10)


def an_entrance() -> Entrance:
    """One row is inside, and one ahead."""
    return Entrance(EngineQueue(Capacity(seats=1, spare_seats=0, spare_kv=0.1)), lambda: 0.0)


async def test_a_row_waits_until_another_has_left() -> None:
    entrance, inside, most = an_entrance(), 0, 0

    async def row() -> None:
        nonlocal inside, most
        async with entrance.entered(WORK):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(row() for _ in range(20)))

    assert most == 2


async def test_a_row_that_is_cancelled_at_any_moment_leaves_its_place_to_others() -> None:
    entrance = an_entrance()

    async def stay() -> None:
        async with entrance.entered(WORK):
            await asyncio.Event().wait()

    for moments in range(6):
        rows = [asyncio.create_task(stay()) for _ in range(5)]
        for _ in range(moments):
            await asyncio.sleep(0)
        for row in rows:
            row.cancel()
        await asyncio.wait(rows)

    async with asyncio.timeout(60), entrance.entered(WORK), entrance.entered(WORK):
        pass


async def test_rows_that_are_withdrawn_do_not_enter_and_those_inside_stay() -> None:
    entrance, ending = an_entrance(), asyncio.Event()

    async def stay(batch_id: str) -> None:
        async with entrance.entered(WORK._replace(batch_id=batch_id, tenant=batch_id)):
            await ending.wait()

    rows = [asyncio.create_task(stay(name)) for name in ("mine", "other", "mine", "other")]
    for _ in range(3):
        await asyncio.sleep(0)
    entrance.withdraw("mine")
    await asyncio.sleep(0)
    ending.set()

    async with asyncio.timeout(60):
        ends = await asyncio.gather(*rows, return_exceptions=True)
    assert [type(end) for end in ends] == [type(None), type(None), WithdrawnError, type(None)]

import asyncio

from worker.row_limiter import RowRoom


async def test_no_more_rows_are_inside_than_there_is_room_for() -> None:
    room, inside, most = RowRoom(16), 0, 0

    async def stay(rows: int) -> None:
        nonlocal inside, most
        async with room.taken(rows):
            inside += rows
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= rows

    await asyncio.gather(*(stay(rows) for rows in (16, 5, 5, 5, 16, 1, 16, 3)))

    assert most <= 16
    assert inside == 0


async def test_small_calls_fill_the_room_together() -> None:
    room = RowRoom(16)
    async with room.taken(5), room.taken(5), room.taken(5):
        asked = asyncio.create_task(room.taken(5).__aenter__())

        await asyncio.wait([asked], timeout=0.01)

        assert not asked.done()
    await asyncio.wait_for(asked, 60)


async def test_a_large_call_is_not_passed_by_small_ones_behind_it() -> None:
    room, entered = RowRoom(16), []

    async def enter(rows: int) -> None:
        async with room.taken(rows):
            entered.append(rows)

    async with room.taken(10):
        tasks = [asyncio.create_task(enter(rows)) for rows in (16, 1, 2)]
        await asyncio.sleep(0.01)

        assert entered == []
    await asyncio.gather(*tasks)

    assert entered == [16, 1, 2]


async def test_whoever_gives_up_waiting_leaves_the_room_as_it_was() -> None:
    room = RowRoom(16)
    async with room.taken(16):
        waiting = asyncio.create_task(room.taken(8).__aenter__())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])

    async with asyncio.timeout(60), room.taken(16):
        pass

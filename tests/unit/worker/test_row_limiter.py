import asyncio

from worker.row_limiter import RowLimiter


async def test_no_more_rows_are_inside_than_the_limit() -> None:
    limiter, inside, peak = RowLimiter(16), 0, 0

    async def stay(rows: int) -> None:
        nonlocal inside, peak
        async with limiter.borrowed(rows):
            inside += rows
            peak = max(peak, inside)
            await asyncio.sleep(0)
            inside -= rows

    await asyncio.gather(*(stay(rows) for rows in (16, 5, 5, 5, 16, 1, 16, 3)))

    assert peak <= 16
    assert inside == 0


async def test_small_calls_share_the_limit() -> None:
    limiter = RowLimiter(16)
    async with limiter.borrowed(5), limiter.borrowed(5), limiter.borrowed(5):
        asked = asyncio.create_task(limiter.borrowed(5).__aenter__())

        await asyncio.wait([asked], timeout=0.01)

        assert not asked.done()
    await asyncio.wait_for(asked, 60)


async def test_a_large_call_is_not_passed_by_small_ones_behind_it() -> None:
    limiter, entered = RowLimiter(16), []

    async def enter(rows: int) -> None:
        async with limiter.borrowed(rows):
            entered.append(rows)

    async with limiter.borrowed(10):
        tasks = [asyncio.create_task(enter(rows)) for rows in (16, 1, 2)]
        await asyncio.sleep(0.01)

        assert entered == []
    await asyncio.gather(*tasks)

    assert entered == [16, 1, 2]


async def test_a_call_that_gives_up_waiting_takes_nothing() -> None:
    limiter = RowLimiter(16)
    async with limiter.borrowed(16):
        waiting = asyncio.create_task(limiter.borrowed(8).__aenter__())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])

    async with asyncio.timeout(60), limiter.borrowed(16):
        pass


async def test_rows_that_are_done_make_room_before_the_call_ends() -> None:
    limiter = RowLimiter(16)
    async with limiter.borrowed(16) as places:
        asked = asyncio.create_task(limiter.borrowed(4).__aenter__())
        await places.give_back(3)
        await asyncio.wait([asked], timeout=0.01)
        assert not asked.done()

        await places.give_back(1)

        await asyncio.wait_for(asked, 60)
    async with asyncio.timeout(60), limiter.borrowed(12):
        pass

import asyncio
import threading

import pytest

from shared.tasks import beside, end, see_through


async def test_all_are_over_afterwards() -> None:
    tasks = [asyncio.create_task(asyncio.sleep(1000)) for _ in range(3)]

    await end(*tasks)

    assert all(task.cancelled() for task in tasks)


@pytest.mark.parametrize("kept", [1, 2])
async def test_one_that_keeps_a_cancellation_to_itself_is_asked_again(kept: int) -> None:
    asked = 0

    async def work_on() -> None:
        nonlocal asked
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                asked += 1
                if asked > kept:
                    raise

    task = asyncio.create_task(work_on())
    await asyncio.sleep(0)

    await end(task, patience_seconds=0.01)

    assert task.cancelled()
    assert asked == kept + 1


async def test_what_one_raises_is_left_to_whoever_asks() -> None:
    async def fail() -> None:
        raise ValueError("no")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)

    await end(task)

    with pytest.raises(ValueError, match="no"):
        task.result()


async def test_none_is_over_at_once() -> None:
    await end()


async def test_what_is_cleaned_up_is_done_although_one_is_cancelled_again() -> None:
    done = asyncio.Event()

    async def clean() -> None:
        await asyncio.sleep(0.05)
        done.set()

    task = asyncio.create_task(see_through(clean(), seconds=60))
    await asyncio.sleep(0)

    await end(task, patience_seconds=0.01)

    assert done.is_set()
    assert not task.cancelled()


async def test_a_cleaning_that_takes_too_long_is_cancelled() -> None:
    cleaning = asyncio.Event()
    cancelled = asyncio.Event()

    async def clean() -> None:
        cleaning.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    task = asyncio.create_task(see_through(clean(), seconds=0))
    await cleaning.wait()

    await end(task)

    assert task.cancelled()
    await asyncio.wait_for(cancelled.wait(), 60)


@pytest.mark.parametrize(("size", "is_beside"), [(100, False), (10_000_000, True)])
async def test_work_on_many_bytes_is_done_beside_the_event_loop(size: int, is_beside: bool) -> None:
    def work(data: bytes) -> tuple[threading.Thread, int]:
        return threading.current_thread(), len(data)

    thread, found = await beside(work, bytes(size))

    assert found == size
    assert (thread is not threading.main_thread()) == is_beside

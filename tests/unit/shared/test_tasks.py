import asyncio

import pytest

from shared.tasks import end


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

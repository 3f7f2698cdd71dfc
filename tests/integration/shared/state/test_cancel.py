import asyncio

from shared.state import State


async def test_a_cancelled_task_that_waits_for_redis_ends(state: State) -> None:
    async def ask_for_ever() -> None:
        while True:
            await state.ping()

    for _ in range(20):
        task = asyncio.create_task(ask_for_ever())
        await asyncio.sleep(0.01)

        task.cancel()
        await asyncio.wait([task], timeout=5)

        assert task.cancelled()

import asyncio
import time

from dispatcher.hurry import Hurry

HOUR = 3600.0


async def test_without_a_hurry_nobody_waits() -> None:
    async with asyncio.timeout(5):
        await Hurry().give_way(HOUR)


async def test_who_gives_way_waits_until_nobody_is_in_a_hurry() -> None:
    hurry = Hurry()
    with hurry.here():
        with hurry.here():
            waiting = asyncio.create_task(hurry.give_way(HOUR))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert not waiting.done()
    async with asyncio.timeout(5):
        await waiting


async def test_nobody_waits_for_ever() -> None:
    hurry = Hurry()
    with hurry.here():
        began = time.monotonic()
        await hurry.give_way(0.05)
        assert time.monotonic() - began < 5

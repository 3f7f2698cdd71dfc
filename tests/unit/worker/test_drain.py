import asyncio

import pytest

from shared.ordering.work import Work
from tests.live_replica import Replica, a_replica
from worker.drain import Drain
from worker.engine_seats import StepOutput
from worker.entrance import WithdrawnError

WORK = Work("batch", 0, "acme", 0, 0, 86_400, 10)
#: Of `a_replica`.
SEATS = 4


class Rows:
    """Rows in the replica's engine: each has a seat until vLLM says that it has ended."""

    def __init__(self, replica: Replica, count: int) -> None:
        self._entrance = replica.entrance
        self.ended = asyncio.Event()
        self.tasks = [asyncio.create_task(self._run(number)) for number in range(count)]

    async def _run(self, number: int) -> int:
        async with self._entrance.entered(WORK):
            await self._entrance.seat(str(number), prompt_tokens=5, max_tokens=5)
            await self.ended.wait()
        return number

    async def results(self) -> list[int | BaseException]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*self.tasks, return_exceptions=True)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_rows_with_a_seat_end_and_all_others_are_given_back() -> None:
    async with a_replica() as replica:
        rows = Rows(replica, 30)
        await settled()
        drain = Drain(replica.entrance, replica.calls, seconds=60)

        draining = asyncio.create_task(drain.run())
        await settled()
        late = Rows(replica, 1)
        await settled()
        assert not draining.done()
        # A seat that is free by now is nobody's.
        replica.entrance.note(0.0, [StepOutput("0", 1, is_last=True)])
        rows.ended.set()

        results = await rows.results()
        assert results[:SEATS] == [0, 1, 2, 3]
        assert {type(one) for one in results[SEATS:]} == {WithdrawnError}
        assert [type(one) for one in await late.results()] == [WithdrawnError]
        async with asyncio.timeout(60):
            await draining


async def test_rows_that_take_too_long_are_given_back_too() -> None:
    async with a_replica() as replica:
        rows = Rows(replica, 6)
        await settled()

        async with asyncio.timeout(60):
            await Drain(replica.entrance, replica.calls, seconds=0.2).run()

        assert {type(one) for one in await rows.results()} == {WithdrawnError}
        assert replica.entrance.seated == 0


@pytest.mark.parametrize("moments", range(6))
async def test_no_row_slips_in_whenever_the_drain_begins(moments: int) -> None:
    async with a_replica() as replica:
        rows = Rows(replica, 30)
        for _ in range(moments):
            await asyncio.sleep(0)

        rows.ended.set()
        async with asyncio.timeout(60):
            await Drain(replica.entrance, replica.calls, seconds=60).run()

        assert replica.entrance.rows == replica.entrance.seated == 0
        results = await rows.results()
        assert all(isinstance(one, int | WithdrawnError) for one in results)

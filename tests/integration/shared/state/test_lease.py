import asyncio

from shared.state import State
from tests.eventually import eventually


async def test_one_holder_at_a_time(state: State) -> None:
    first = state.lease("leader", "a", seconds=30)
    second = state.lease("leader", "b", seconds=30)

    assert await first.hold() == 1
    assert await second.hold() == 0


async def test_one_of_many_at_once_holds_it(state: State) -> None:
    leases = [state.lease("leader", str(number), seconds=30) for number in range(16)]

    numbers = await asyncio.gather(*(lease.hold() for lease in leases))

    assert sorted(numbers) == [0] * 15 + [1]


async def test_renewing_keeps_the_number(state: State) -> None:
    lease = state.lease("leader", "a", seconds=30)

    assert [await lease.hold() for _ in range(3)] == [1, 1, 1]


async def test_each_new_holding_has_a_higher_number(state: State) -> None:
    first = state.lease("leader", "a", seconds=30)
    second = state.lease("leader", "b", seconds=30)
    await first.hold()

    await first.release()

    assert await second.hold() == 2


async def test_nobody_lets_go_of_anothers(state: State) -> None:
    first = state.lease("leader", "a", seconds=30)
    second = state.lease("leader", "b", seconds=30)
    await first.hold()

    await second.release()

    assert await second.hold() == 0


async def test_it_ends_by_itself(state: State) -> None:
    first = state.lease("leader", "a", seconds=0.05)
    second = state.lease("leader", "b", seconds=30)
    await first.hold()

    async def passes_over() -> bool:
        return await second.hold() == 2

    await eventually(passes_over)
    assert await first.hold() == 0


async def test_leases_of_other_names_are_independent(state: State) -> None:
    assert await state.lease("a", "x", seconds=30).hold() == 1
    assert await state.lease("b", "y", seconds=30).hold() == 1

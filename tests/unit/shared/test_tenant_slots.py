import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shared.tasks import end
from shared.tenant_slots import TenantSlots, may_take
from tests.eventually import eventually


@given(wishes=st.lists(st.sampled_from("abcd"), max_size=60), slots=st.integers(1, 40))
def test_whatever_some_tenants_take_the_next_one_finds_a_slot(
    wishes: list[str], slots: int
) -> None:
    held: Counter[str] = Counter()
    for tenant in wishes:
        if may_take(tenant, held, slots):
            held[tenant] += 1

    assert held.total() <= slots
    # Each leaves as many to those with fewer as it has itself, but for one.
    left = slots
    for number in sorted(held.values(), reverse=True):
        assert number <= left - number + 1
        left -= number
    assert may_take("another", held, slots) or len(held) >= slots.bit_length()


async def test_two_tenants_whose_work_hangs_leave_slots_to_a_third() -> None:
    slots = TenantSlots(12)
    begun: Counter[str] = Counter()
    released = asyncio.Event()

    async def work(tenant: str) -> None:
        async with slots.taken(tenant):
            begun[tenant] += 1
            await released.wait()

    wanted = [*["slow"] * 20, *["also slow"] * 20, "other"]
    tasks = [asyncio.create_task(work(tenant)) for tenant in wanted]
    try:
        await eventually(lambda: begun["other"] == 1)
        assert begun == {"slow": 6, "also slow": 3, "other": 1}

        released.set()

        await eventually(lambda: begun == Counter(wanted))
    finally:
        await end(*tasks)


async def test_a_slot_that_becomes_free_goes_to_the_tenant_with_the_fewest() -> None:
    slots = TenantSlots(2)
    order: list[str] = []
    first = asyncio.Event()

    async def work(tenant: str, until: asyncio.Event) -> None:
        async with slots.taken(tenant):
            order.append(tenant)
            await until.wait()

    done = asyncio.Event()
    holding = [asyncio.create_task(work(one, until)) for one, until in (("a", done), ("b", first))]
    await eventually(lambda: order == ["a", "b"])
    waiting = [asyncio.create_task(work(one, done)) for one in ("a", "a", "c")]
    try:
        await asyncio.sleep(0)
        first.set()
        await eventually(lambda: len(order) == 3)
        assert order[-1] == "c"
    finally:
        await end(*holding, *waiting)


async def test_whoever_gives_up_waiting_takes_no_slot() -> None:
    slots = TenantSlots(1)

    async def work() -> None:
        async with slots.taken("acme"):
            await asyncio.Event().wait()

    holding = asyncio.create_task(work())
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    # One of them is given the slot in the moment in which it is cancelled.
    holding.cancel()
    await asyncio.wait([holding])
    await end(*waiting)

    async with asyncio.timeout(60), slots.taken("acme"):
        pass


async def test_all_tenants_together_have_no_more_than_all_slots() -> None:
    slots = TenantSlots(2)
    at_once, max_at_once = 0, 0

    async def work(tenant: str) -> None:
        nonlocal at_once, max_at_once
        async with slots.taken(tenant):
            at_once += 1
            max_at_once = max(max_at_once, at_once)
            await asyncio.sleep(0)
            at_once -= 1

    await asyncio.gather(*(work(f"tenant-{number}") for number in range(9)))

    assert max_at_once == 2

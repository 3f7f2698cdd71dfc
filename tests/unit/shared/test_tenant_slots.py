import asyncio

from shared.tasks import end
from shared.tenant_slots import TenantSlots
from tests.eventually import eventually


async def test_a_tenant_whose_work_hangs_leaves_slots_to_others() -> None:
    slots = TenantSlots(3, per_tenant=2)
    begun: list[str] = []
    released = asyncio.Event()

    async def work(tenant: str) -> None:
        async with slots.taken(tenant):
            begun.append(tenant)
            await released.wait()

    tasks = [asyncio.create_task(work(tenant)) for tenant in ("slow", "slow", "slow", "other")]
    try:
        await eventually(lambda: "other" in begun)
        assert begun.count("slow") == 2

        released.set()

        await eventually(lambda: len(begun) == 4)
    finally:
        await end(*tasks)


async def test_all_tenants_together_have_no_more_than_all_slots() -> None:
    slots = TenantSlots(2, per_tenant=2)
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

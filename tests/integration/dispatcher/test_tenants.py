"""What is set for a tenant holds for its batches, whichever door they came by."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from dispatcher.lanes import LaneKeeper
from dispatcher.packing import Packer
from dispatcher.planning import Started
from dispatcher.remaker import Remaker
from dispatcher.rounds import Rounds
from shared.bus.messages import RejectedError
from shared.catalog import Catalog
from shared.lifecycle import Status
from shared.retention import DAY_SECONDS
from shared.state import FileRecord, State
from shared.storage import Storage
from shared.submission.admission import NewBatchQuota
from shared.tasks import end
from shared.tenants import EVERY_TENANT, TenantSettings
from tests.batches import claim_suspects, claimed
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import BatchYard, a_planner, line, lines
from tests.manifests import inline

Submit = Callable[[bytes], Awaitable[str]]


@pytest.fixture(params=["planned", "inline"])
def submit(request: pytest.FixtureRequest, yard: BatchYard, catalog: Catalog) -> Submit:
    """Both ways in which batches are planned: by the leader, and on the way of a message."""
    return _submit(request.param, yard, catalog)


@pytest.fixture(params=["planned", "inline"])
def submit_mixed(
    request: pytest.FixtureRequest,
    yard: BatchYard,
    state: State,
    storage: Storage,
    catalog: Catalog,
) -> Submit:
    planner = a_planner(state, storage, catalog, mixed_batches=True)
    return _submit(request.param, BatchYard(state, storage, planner, yard.finaliser), catalog)


def _submit(way: str, yard: BatchYard, catalog: Catalog) -> Submit:
    packer = _packer(yard, catalog)

    async def submit(body: bytes) -> str:
        if way == "planned":
            return await yard.plan(body)
        batch = inline(f"m-{time.time_ns()}", body)
        await packer.make(batch)
        batch_id = batch.manifest.id
        if (await yard.state.batches.get(batch_id)).status is Status.VALIDATING:
            await yard.planner.plan(batch_id)
        return batch_id

    return submit


def _packer(yard: BatchYard, catalog: Catalog, engine_deaths: int | None = None) -> Packer:
    quota = NewBatchQuota(catalog, 1000, 1000, 100_000, engine_deaths=engine_deaths)
    return Packer(yard.state, yard.storage, quota=quota, planner=yard.planner)


async def test_a_tenants_adapter_is_a_model_for_its_batches_alone(
    submit: Submit, state: State
) -> None:
    for tenant, file_id in (("acme", "file-mine"), ("umbrella", "file-theirs")):
        file = FileRecord.missing(file_id, tenant, bucket="b", key=f"files/{tenant}/{file_id}")
        await state.files.create(file._replace(purpose="adapter"))

    own = await state.batches.get(await submit(lines(2, model="other:file-mine")))
    refused = {}
    for name in ("other:file-theirs", "other:file-none", "m:file-mine"):
        problems = await _problems(state, await submit(lines(2, model=name)))
        refused[name] = json.dumps(problems).replace(name, "it")

    assert own.status is Status.IN_PROGRESS
    assert (own.fields["model"], own.fields["lane"]) == ("other:file-mine", "other@gpu")
    theirs, unknown, other_base = refused.values()
    assert theirs == unknown == other_base
    await state.files.delete("acme", "file-mine")
    assert await _problems(state, await submit(lines(2, model="other:file-mine")))


async def test_a_model_that_the_tenant_may_not_use_fails_the_batch_as_an_unknown_one_does(
    submit: Submit, state: State
) -> None:
    await state.tenants.put("acme", TenantSettings(models=("other", "few")))

    denied = await _problems(state, await submit(lines(2, model="m")))
    unknown = await _problems(state, await submit(lines(2, model="x")))
    allowed = await submit(lines(2, model="other"))
    adapter = await submit(lines(1, model="adapter"))

    assert [problem["code"] for problem in denied] == ["model_not_found"] * 2
    assert [(one["line"], one["param"]) for one in denied] == [(1, "body.model"), (2, "body.model")]
    assert json.dumps(denied).replace("'m'", "'x'") == json.dumps(unknown)
    statuses = await state.batches.statuses([allowed, adapter])
    # An adapter has a name of its own.
    assert list(statuses.values()) == [Status.IN_PROGRESS, Status.FAILED]


async def test_each_row_of_a_mixed_batch_may_only_name_models_of_the_tenant(
    submit_mixed: Submit, state: State
) -> None:
    await state.tenants.put("acme", TenantSettings(models=("m", "other")))
    rows = [
        line(f"row-{number}", model=model) for number, model in enumerate(["m", "few", "other"])
    ]

    mixed = await _problems(state, await submit_mixed(b"\n".join(rows)))
    allowed = await submit_mixed(b"\n".join([rows[0], rows[2]]))

    assert [(one["code"], one["line"]) for one in mixed] == [("model_not_found", 2)]
    assert (await state.batches.get(allowed)).status is Status.IN_PROGRESS


async def test_of_other_tenants_nothing_is_restricted(submit: Submit, state: State) -> None:
    await state.tenants.put("globex", TenantSettings(models=("other",), custom_id_characters=1))

    assert (await state.batches.get(await submit(lines(2)))).status is Status.IN_PROGRESS


async def test_a_tenant_with_all_models_has_them_whatever_holds_for_all(
    submit: Submit, state: State
) -> None:
    await state.tenants.put(EVERY_TENANT, TenantSettings(models=("other",)))
    restricted = await submit(lines(1))
    await state.tenants.put("acme", TenantSettings(models=("*",)))

    statuses = await state.batches.statuses([restricted, await submit(lines(1))])

    assert list(statuses.values()) == [Status.FAILED, Status.IN_PROGRESS]


async def test_a_long_custom_id_is_refused_with_its_line(submit: Submit, state: State) -> None:
    usual = await _problems(state, await submit(line("a") + b"\n" + line("x" * 513)))
    await state.tenants.put(EVERY_TENANT, TenantSettings(custom_id_characters=5))
    short = await submit(lines(1))
    tight = await _problems(state, await submit(lines(1) + line("sixsix") + b"\n" + lines(1)))

    assert [(one["code"], one["line"], one["param"]) for one in usual] == [
        ("string_above_max_length", 2, "custom_id")
    ]
    assert (await state.batches.get(short)).status is Status.IN_PROGRESS
    assert [one["code"] for one in tight] == ["string_above_max_length", "duplicate_custom_id"]
    assert "maximum length 5, but got a string with length 6" in tight[0]["message"]


async def test_quotas_of_running_batches_are_the_tenants_own(submit: Submit, state: State) -> None:
    await state.tenants.put("acme", TenantSettings(enqueued_requests=5))
    running = await submit(lines(3))

    [problem] = await _problems(state, await submit(lines(3)))
    await state.tenants.put("acme", TenantSettings(enqueued_requests=6))
    later = await submit(lines(3))

    assert problem["code"] == "request_limit_exceeded"
    assert "Limit: 5 enqueued requests. Used: 3." in problem["message"]
    assert problem["message"].endswith("This batch has 3.")
    statuses = await state.batches.statuses([running, later])
    assert list(statuses.values()) == [Status.IN_PROGRESS] * 2


async def test_a_tenants_own_quota_of_tokens_goes_before_the_catalogs(
    submit: Submit, state: State
) -> None:
    await state.tenants.put("acme", TenantSettings(enqueued_tokens=2000))
    roomy = await submit(line("a", model="few", user="x" * 6000))

    [problem] = await _problems(state, await submit(line("b", model="few", user="x" * 6000)))

    assert (await state.batches.get(roomy)).status is Status.IN_PROGRESS
    assert problem["code"] == "token_limit_exceeded"
    assert "Limit: 2,000 enqueued tokens." in problem["message"]


async def test_a_message_is_refused_whose_tenant_has_no_room_for_it(
    yard: BatchYard, catalog: Catalog, state: State
) -> None:
    packer, body = _packer(yard, catalog), lines(3)
    await state.tenants.put("acme", TenantSettings(stored_bytes=2 * len(body)))
    await packer.make(inline("first", body))

    assert await state.files.stored_bytes("acme") == len(body)
    with pytest.raises(RejectedError) as refused:
        await packer.make(inline("second", body + body))
    await packer.make(inline("third", body))

    [reason] = refused.value.reasons
    assert reason.code == "quota_exceeded"
    assert "Storage limit reached in organization acme." in reason.message
    assert f"Limit: {2 * len(body):,} bytes" in reason.message
    # Other tenants have room of their own.
    await packer.make(inline("fourth", body, tenant="globex"))


async def test_a_tenant_with_as_many_batches_as_it_may_keep_creates_no_more(
    yard: BatchYard, catalog: Catalog, state: State
) -> None:
    packer = _packer(yard, catalog)
    await state.tenants.put("acme", TenantSettings(kept_batches=1))
    await packer.make(inline("first", lines(1)))

    with pytest.raises(RejectedError) as refused:
        await packer.make(inline("second", lines(1)))
    # A repeat makes no other batch.
    await packer.make(inline("first", lines(1)))
    await packer.make(inline("third", lines(1), tenant="globex"))

    [reason] = refused.value.reasons
    assert reason.code == "quota_exceeded"
    assert "Kept batch limit reached in organization acme." in reason.message


async def test_results_count_and_are_never_refused(
    yard: BatchYard, state: State, catalog: Catalog
) -> None:
    await state.tenants.put("acme", TenantSettings(stored_bytes=10_000))
    batch_id = await yard.plan(lines(3))
    await state.tenants.put("acme", TenantSettings(stored_bytes=1))

    await yard.run(batch_id, lambda _: (200, b'{"choices": ["answer"]}'))
    await yard.finaliser.finish(batch_id)

    record = await state.batches.get(batch_id)
    output = await yard.content(record.fields["output_file_id"])
    assert record.status is Status.COMPLETED
    assert await state.files.stored_bytes("acme") == len(output)
    with pytest.raises(RejectedError, match="Storage limit reached"):
        await _packer(yard, catalog).make(inline("next", lines(1)))
    await state.files.delete("acme", record.fields["output_file_id"])
    assert await state.files.stored_bytes("acme") == 0


async def test_a_tenant_of_whose_requests_engines_died_creates_no_more_batches_that_day(
    yard: BatchYard, catalog: Catalog, state: State, redis: "Redis[str]", namespace: str
) -> None:
    packer = _packer(yard, catalog, engine_deaths=2)
    day = int(time.time()) // DAY_SECONDS
    await redis.hset(f"{namespace}engine-deaths:{day}", mapping={"acme": 2, "globex": 1})
    await redis.hset(f"{namespace}engine-deaths:{day - 1}", mapping={"initech": 9})

    with pytest.raises(RejectedError) as refused:
        await packer.make(inline("a", lines(1)))
    await packer.make(inline("b", lines(1), tenant="globex"))
    await packer.make(inline("c", lines(1), tenant="initech"))
    await state.tenants.put("acme", TenantSettings(engine_deaths_per_day=3))
    await packer.make(inline("d", lines(1)))

    [reason] = refused.value.reasons
    assert reason.code == "quota_exceeded"
    assert "Limit: 2 engines in a day that died of your requests. Used: 2." in reason.message


async def test_what_such_a_tenant_has_ready_waits_until_it_may_have_more(
    yard: BatchYard, state: State, redis: "Redis[str]", namespace: str
) -> None:
    keeper = LaneKeeper(
        state,
        yard.storage,
        None,  # type: ignore[arg-type]  # no lane job is looked after
        ready_rows=99,
        silence_seconds=9,
        attempts=9,
    )
    await state.tenants.put("acme", TenantSettings(engine_deaths_per_day=2))
    mine, others = await yard.plan(lines(6)), await yard.plan(lines(3), tenant="globex")
    await keeper.feed("m@gpu")
    before = await state.lanes.ready_count("m@gpu")
    deaths = f"{namespace}engine-deaths:{int(time.time()) // DAY_SECONDS}"
    await redis.hset(deaths, mapping={"acme": 2, "globex": 2})

    async def is_fed(slices: int) -> bool:
        await keeper.look_at_tenants()
        await keeper.feed("m@gpu")
        return await state.lanes.ready_count("m@gpu") == slices

    await eventually(lambda: is_fed(1))
    ready = await state.lanes.candidates("m@gpu", slices_per_batch=9)
    await state.tenants.put("acme", TenantSettings(engine_deaths_per_day=3))
    await eventually(lambda: is_fed(3))

    small = await yard.plan(lines(1))
    await state.tenants.put("acme", TenantSettings(engine_deaths_per_day=2))
    await eventually(lambda: is_fed(1))
    await keeper.feed_small(Started(small, "acme", ("m@gpu",), 1, 1))
    assert await state.lanes.ready_count("m@gpu") == 1

    assert before == 3
    assert {one.batch_id for one in ready if one.is_ready} == {others}
    # What waits is still there.
    assert len([one for one in ready if one.batch_id == mine]) == 2


async def test_the_death_of_an_engine_counts_for_the_tenant_whose_rows_were_alone_in_it(
    state: State,
) -> None:
    [first, second] = await claimed(state, slices=2)
    [other] = await claimed(state, slices=1, tenant="globex")

    await state.claims.release(first, strikes=1, max_deaths=9, is_tenants_own=True)
    await state.claims.release(first, strikes=1, max_deaths=9, is_tenants_own=True)
    await state.claims.release(second, strikes=1, max_deaths=9)
    await state.claims.release(other, strikes=1)

    usage = [await state.tenants.usage(tenant, ()) for tenant in ("acme", "globex")]
    assert [one.engine_deaths for one in usage] == [1, 0]
    again = (await claim_suspects(state))[0]
    assert (again.tenant, again.tenant_deaths, again.tenant_death_limit) == ("acme", 1, None)


async def test_weights_that_are_set_reach_what_is_claimed_within_a_round_or_two(
    yard: BatchYard, state: State, catalog: Catalog
) -> None:
    keeper = LaneKeeper(
        state,
        yard.storage,
        None,  # type: ignore[arg-type]  # no lane has work
        ready_rows=9,
        silence_seconds=9,
        attempts=9,
        given_weights={"acme": 2.0, "globex": 5.0},
    )
    rounds = Rounds(
        state,
        planner=yard.planner,
        finaliser=yard.finaliser,
        remaker=Remaker(state, yard.storage),
        lanes=keeper,
    )
    running = asyncio.create_task(rounds.run())
    try:
        await eventually(lambda: _weight(state, "acme", 2.0))
        await state.tenants.put("acme", TenantSettings(weight=3.0))
        await eventually(lambda: _weight(state, "acme", 3.0))
        await eventually(lambda: _weight(state, "globex", 5.0))
        await state.tenants.put("acme", TenantSettings())
        await eventually(lambda: _weight(state, "acme", 2.0))
        await eventually(lambda: _weight(state, "initech", 1.0))
    finally:
        await end(running)


async def _weight(state: State, tenant: str, expected: float) -> bool:
    """Whether a claim of the tenant has the weight, which it takes with it to the engine."""
    [claim] = await claimed(state, slices=1, tenant=tenant, lane=f"{tenant}@gpu")
    return claim.weight == expected


async def _problems(state: State, batch_id: str) -> list[dict[str, Any]]:
    record = await state.batches.get(batch_id)
    assert record.status is Status.FAILED
    found: list[dict[str, Any]] = json.loads(record.fields["errors"])
    return found

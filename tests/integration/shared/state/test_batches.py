import asyncio
import json
import secrets
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from shared.errors import NotFoundError, TransientError
from shared.lifecycle import Event, Status
from shared.state import Admission, FileRecord, Rate, State
from shared.tasks import end
from tests.batches import batch_fields, contents, in_progress, validating


async def test_an_accepted_batch_is_validating(state: State) -> None:
    batch_id = await validating(state)

    record = await state.batches.get(batch_id)

    assert record.status is Status.VALIDATING
    assert record.tenant == "acme"
    assert record.to_openai().request_counts.total == 0
    assert await state.batches.in_status(Status.VALIDATING) == [batch_id]


async def test_an_acceptance_is_announced_with_its_submission(state: State) -> None:
    batch_id = await validating(state, submission='{"tenant":"acme"}')

    [event] = await state.outbox.read("events", limit=10, wait_seconds=0)
    [submission] = await state.outbox.read("submissions", limit=10, wait_seconds=0)
    assert event.fields["type"] == "batch.accepted"
    assert event.fields["sequence"] == "1"
    assert event.snapshot()["id"] == batch_id
    assert submission.fields == {"message": '{"tenant":"acme"}'}


@pytest.mark.parametrize(("fingerprint", "outcome"), [("print", "duplicate"), ("x", "conflict")])
async def test_a_second_acceptance_changes_nothing(
    fingerprint: str, outcome: str, state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await validating(state)
    before = await contents(redis, namespace)

    again = await state.batches.accept(
        batch_id,
        fingerprint,
        batch_fields(batch_id, tenant="globex"),
        input_file=_input(batch_id).to_fields(),
        submission="{}",
    )

    assert again == outcome
    assert await contents(redis, namespace) == before


async def test_of_many_acceptances_at_once_one_makes_the_batch(state: State) -> None:
    fields = batch_fields("batch_1")

    outcomes = await asyncio.gather(
        *(
            state.batches.accept("batch_1", "print", fields, input_file=None, submission="{}")
            for _ in range(16)
        )
    )

    assert sorted(outcomes) == ["accepted"] + ["duplicate"] * 15
    assert await state.outbox.length("events") == 1
    assert await state.outbox.length("submissions") == 1


async def test_an_input_from_the_bus_becomes_a_file_of_the_tenant(state: State) -> None:
    await state.batches.accept(
        "batch_1",
        "print",
        batch_fields("batch_1"),
        input_file=_input("batch_1").to_fields(),
        submission=None,
    )

    assert await state.files.get("acme", "file-batch_1") == _input("batch_1")


async def test_an_unknown_batch_is_not_found(state: State) -> None:
    with pytest.raises(NotFoundError):
        await state.batches.get("batch_none")


async def test_many_gives_those_that_exist_in_the_order_asked_for(state: State) -> None:
    first, second = await validating(state), await validating(state)

    found = await state.batches.many([second, "batch_none", first])

    assert [record.id for record in found] == [second, first]


async def test_statuses_gives_those_that_exist(state: State) -> None:
    first, second = await validating(state), await in_progress(state)

    found = await state.batches.statuses([first, "batch_none", second])

    assert found == {first: Status.VALIDATING, second: Status.IN_PROGRESS}


async def test_a_page_is_newest_first_and_says_whether_there_are_more(state: State) -> None:
    made = [await validating(state) for _ in range(5)]

    first, has_more = await state.batches.page("acme", after=None, limit=3)
    rest, has_even_more = await state.batches.page("acme", after=first[-1].id, limit=3)

    assert [record.id for record in first + rest] == made[::-1]
    assert (has_more, has_even_more) == (True, False)


async def test_a_page_that_ends_with_the_last_batch_has_no_more(state: State) -> None:
    for _ in range(3):
        await validating(state)

    page, has_more = await state.batches.page("acme", after=None, limit=3)

    assert len(page) == 3
    assert not has_more


async def test_pages_are_exact_while_batches_come(state: State) -> None:
    old = [await validating(state) for _ in range(25)]

    async def come() -> None:
        while True:
            await validating(state)

    coming = asyncio.create_task(come())
    found = [old[-1]]
    has_more = True
    while has_more:
        page, has_more = await state.batches.page("acme", after=found[-1], limit=1)
        found += [record.id for record in page]
    await end(coming)

    assert found == old[::-1]


async def test_every_way_to_a_record_shows_the_same_texts(state: State) -> None:
    texts = "".join(map(chr, range(128))) + "\u00e4\u2028\U0001f600 \\u0041 \\/"
    batch_id = await validating(state, metadata=json.dumps({"odd": texts}), endpoint=texts)
    key = await state.keys.create("acme")

    admission = await state.keys.admit(key, [Rate("requests", 1000, 60)], batch_id=batch_id)
    [listed], _ = await state.batches.page("acme", after=None, limit=1)

    assert isinstance(admission, Admission)
    assert listed.fields["endpoint"] == texts
    assert admission.batch == listed == await state.batches.get(batch_id)


async def test_a_batch_that_has_changed_is_read_again(state: State) -> None:
    batch_id = await validating(state)
    [[before], _] = await state.batches.page("acme", after=None, limit=1)

    await state.apply(batch_id, Event.INPUT_REJECTED, {"errors": "[]"})
    [[after], _] = await state.batches.page("acme", after=None, limit=1)

    assert (before.status, after.status) == (Status.VALIDATING, Status.FAILED)


async def test_a_page_after_an_unknown_batch_is_empty(state: State) -> None:
    await validating(state)

    assert await state.batches.page("acme", after="batch_none", limit=3) == ([], False)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    before=st.integers(0, 7),
    limits=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    arrivals=st.lists(st.integers(0, 3), max_size=12),
)
async def test_pages_show_each_batch_once_while_others_are_made(
    before: int, limits: list[int], arrivals: list[int], state: State
) -> None:
    tenant = f"t{secrets.token_hex(4)}"
    made = [await validating(state, tenant=tenant) for _ in range(before)]
    seen: list[str] = []
    after, has_more, pages = None, True, 0

    while has_more:
        limit = limits[pages % len(limits)]
        page, has_more = await state.batches.page(tenant, after=after, limit=limit)
        assert len(page) == limit or not has_more
        seen += [record.id for record in page]
        after = page[-1].id if page else None
        for _ in range(arrivals[pages] if pages < len(arrivals) else 0):
            await validating(state, tenant=tenant)
        pages += 1

    assert seen == made[::-1]


async def test_no_batch_that_is_made_meanwhile_moves_a_page(state: State) -> None:
    made = [await validating(state) for _ in range(30)]
    is_over = asyncio.Event()

    async def make() -> None:
        while not is_over.is_set():
            await validating(state)

    async def follow() -> list[str]:
        seen, after = [], made[-1]
        while page := (await state.batches.page("acme", after=after, limit=1))[0]:
            after = page[0].id
            seen.append(after)
        return seen

    makers = [asyncio.create_task(make()) for _ in range(8)]
    walks = await asyncio.gather(*(follow() for _ in range(4)))
    is_over.set()
    await asyncio.gather(*makers)

    assert walks == [made[-2::-1]] * 4


async def test_a_tenant_sees_only_its_own_batches(state: State) -> None:
    await validating(state, tenant="globex")
    own = await validating(state)

    page, _ = await state.batches.page("acme", after=None, limit=10)

    assert [record.id for record in page] == [own]


async def test_live_batches_are_past_their_window_once_it_has_closed(state: State) -> None:
    now = int(time.time())
    closed = await in_progress(state, expires_at=now - 1)
    await in_progress(state, expires_at=now + 3600)
    ended = await in_progress(state, expires_at=now - 2)
    await state.apply(ended, Event.LANE_FAILED)

    assert await state.batches.past_window() == [closed]


async def test_the_openai_shape_carries_what_was_counted(state: State) -> None:
    batch_id = await validating(state, metadata='{"team":"blue"}')
    problem = {"code": "bad_line", "line": 3, "message": "no", "param": "body"}
    await state.apply(batch_id, Event.INPUT_REJECTED, {"errors": json.dumps([problem])})

    shape = (await state.batches.get(batch_id)).to_openai()

    assert shape.metadata == {"team": "blue"}
    assert shape.errors is not None
    assert [error.model_dump() for error in shape.errors.data] == [problem]
    assert shape.failed_at is not None
    assert shape.completed_at is None


def _input(batch_id: str) -> FileRecord:
    return FileRecord(
        id=f"file-{batch_id}",
        tenant="acme",
        bytes=10,
        created_at=1,
        expires_at=None,
        filename="in.jsonl",
        purpose="batch",
        bucket="b",
        key="k",
        etag="e",
        owned=False,
    )


async def test_during_a_rebuild_no_number_is_given_to_an_event(state: State) -> None:
    batch_id = await validating(state)
    await state.restore.begin()

    with pytest.raises(TransientError):
        await state.batches.pinned(batch_id)
    # Redis may not know the batch yet.
    with pytest.raises(TransientError):
        await state.batches.pinned("batch_unknown")

    await state.restore.end()
    _, pin = await state.batches.pinned(batch_id)
    assert pin.sequence == 2


async def test_during_a_rebuild_no_batch_is_missing_for_sure(state: State) -> None:
    batch_id = await validating(state)
    await state.restore.begin()

    assert (await state.batches.get(batch_id)).id == batch_id
    with pytest.raises(TransientError):
        await state.batches.get("batch_unknown")

    await state.restore.end()
    with pytest.raises(NotFoundError):
        await state.batches.get("batch_unknown")

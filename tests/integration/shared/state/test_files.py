import asyncio
import itertools
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.errors import NotFoundError, TransientError
from shared.lifecycle import Event, Status
from shared.state import FileRecord, State
from tests.batches import claimed, contents, in_progress, in_status, part, validating


async def test_a_file_is_read_back_as_it_was_written(state: State) -> None:
    file = _file("file-1", expires_at=7)

    await state.files.create(file)

    assert await state.files.get("acme", "file-1") == file


async def test_a_repeated_creation_changes_nothing(
    state: State, redis: Redis, namespace: str
) -> None:
    await state.files.create(_file("file-1"))
    before = await contents(redis, namespace)

    await state.files.create(_file("file-1", key="other"))

    assert await contents(redis, namespace) == before


@pytest.mark.parametrize("call", ["get", "delete"])
async def test_anothers_file_is_not_found(call: str, state: State) -> None:
    await state.files.create(_file("file-1"))

    with pytest.raises(NotFoundError) as anothers:
        await getattr(state.files, call)("globex", "file-1")
    with pytest.raises(NotFoundError) as none:
        await getattr(state.files, call)("globex", "file-2")

    assert str(anothers.value).replace("file-1", "") == str(none.value).replace("file-2", "")
    assert await state.files.get("acme", "file-1")


async def test_during_a_rebuild_no_file_is_missing_for_sure(state: State) -> None:
    await state.restore.begin()

    with pytest.raises(TransientError):
        await state.files.get("acme", "file-unknown")

    await state.restore.end()
    with pytest.raises(NotFoundError):
        await state.files.get("acme", "file-unknown")


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_follow_each_other_without_gap_or_repeat(
    state: State, newest_first: bool
) -> None:
    made = [f"file-{number}" for number in range(7)]
    for file_id in made:
        await state.files.create(_file(file_id))

    found: list[str] = []
    after, has_more = None, True
    while has_more:
        page, has_more = await state.files.page(
            "acme", after=after, limit=3, newest_first=newest_first
        )
        found += [file.id for file in page]
        after = found[-1]

    assert found == (made[::-1] if newest_first else made)


async def test_a_page_of_one_purpose_is_full_although_others_lie_between(state: State) -> None:
    for number in range(250):
        purpose = "batch" if number % 100 == 0 else "batch_output"
        await state.files.create(_file(f"file-{number}", purpose=purpose))

    page, has_more = await state.files.page("acme", after=None, limit=2, purpose="batch")
    rest, has_even_more = await state.files.page(
        "acme", after=page[-1].id, limit=2, purpose="batch"
    )

    assert [file.id for file in page + rest] == ["file-200", "file-100", "file-0"]
    assert (has_more, has_even_more) == (True, False)


async def test_a_page_after_an_unknown_file_is_empty(state: State) -> None:
    await state.files.create(_file("file-1"))

    assert await state.files.page("acme", after="file-2", limit=2) == ([], False)


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_are_exact_while_files_come_and_go(state: State, newest_first: bool) -> None:
    steady = [f"file-{number}" for number in range(25)]
    for file_id in steady:
        await state.files.create(_file(file_id))

    async def come_and_go() -> None:
        for number in itertools.count():
            await state.files.create(_file(f"file-new-{number}"))
            await state.files.delete("acme", f"file-new-{number}")

    busy = [asyncio.create_task(come_and_go())]
    found: list[str] = []
    has_more = True
    while has_more and len(found) < 1000:
        page, has_more = await state.files.page(
            "acme", after=found[-1] if found else None, limit=1, newest_first=newest_first
        )
        found += [file.id for file in page]
        has_more = has_more and found[-1] != steady[0 if newest_first else -1]
    busy[0].cancel()
    await asyncio.gather(*busy, return_exceptions=True)

    seen = [file_id for file_id in found if "new" not in file_id]
    assert seen == (steady[::-1] if newest_first else steady)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_go_on_from_the_place_of_a_file_that_was_deleted(
    state: State, newest_first: bool
) -> None:
    for number in range(5):
        await state.files.create(_file(f"file-{number}"))
    await state.files.delete("acme", "file-2")
    await state.files.create(_file("file-5"))

    rest, has_more = await state.files.page(
        "acme", after="file-2", limit=10, newest_first=newest_first
    )

    expected = ["file-1", "file-0"] if newest_first else ["file-3", "file-4", "file-5"]
    assert ([file.id for file in rest], has_more) == (expected, False)
    assert await state.files.page("globex", after="file-2", limit=10) == ([], False)


async def test_files_of_one_moment_have_places_of_their_own(state: State) -> None:
    [claim] = await claimed(state, slices=1, id="batch_1")
    await state.claims.commit(claim, part(claim))
    await state.conclude(
        claim.batch_id,
        Event.OUTPUT_COMMITTED,
        files=[_file(f"file-{kind}").to_fields() for kind in ("output", "error")],
        fields={},
    )

    [first], has_more = await state.files.page("acme", after=None, limit=1)
    [second], has_even_more = await state.files.page("acme", after=first.id, limit=1)

    assert [first.id, second.id] == ["file-error", "file-output"]
    assert (has_more, has_even_more) == (True, False)


async def test_an_expired_file_is_not_listed(state: State) -> None:
    now = int(time.time())
    await state.files.create(_file("file-1", expires_at=now + 3600))
    await state.files.create(_file("file-2", expires_at=now))

    page, has_more = await state.files.page("acme", after=None, limit=1)

    assert ([file.id for file in page], has_more) == (["file-1"], False)


async def test_only_files_whose_time_is_over_have_expired(state: State) -> None:
    now = int(time.time())
    for file_id, expires_at in (("file-1", 20), ("file-2", 10), ("file-3", now + 3600)):
        await state.files.create(_file(file_id, expires_at=expires_at))
    await state.files.create(_file("file-4"))

    assert [file.id for file in await state.files.expired()] == ["file-2", "file-1"]

    await state.files.delete("acme", "file-2")
    assert [file.id for file in await state.files.expired()] == ["file-1"]


async def test_reserved_objects_are_garbage_only_when_no_file_kept_them_in_time(
    state: State,
) -> None:
    await state.files.reserve("files/1", "files/1.json", seconds=3600)
    await state.files.reserve("files/2", "files/2.json", seconds=0)
    await state.files.reserve("files/3", "files/3.json", seconds=0)
    await state.files.reserve("files/4", "files/4.json", seconds=0)

    assert await state.files.keep(_file("file-1"))
    assert await state.files.keep(_file("file-2"))
    assert await state.files.keep(_file("file-2"))
    await state.files.unreserve("files/3", "files/3.json")

    assert await state.files.garbage() == ["files/4", "files/4.json"]
    assert not await state.files.keep(_file("file-4"))
    with pytest.raises(NotFoundError):
        await state.files.get("acme", "file-4")


async def test_the_objects_of_a_file_that_is_there_are_not_reserved_again(state: State) -> None:
    assert await state.files.reserve("files/1", seconds=0, file_id="file-1")
    await state.files.keep(_file("file-1"))

    assert not await state.files.reserve("files/1", seconds=0, file_id="file-1")
    assert await state.files.garbage() == []


async def test_a_deleted_file_is_gone_and_its_object_is_garbage(state: State) -> None:
    await state.files.create(_file("file-1"))

    await state.files.delete("acme", "file-1")

    with pytest.raises(NotFoundError):
        await state.files.get("acme", "file-1")
    assert await state.files.page("acme", after=None, limit=2) == ([], False)
    assert await state.files.garbage() == ["files/1"]


async def test_an_object_that_is_not_ours_is_never_garbage(state: State) -> None:
    await state.files.create(_file("file-1", owned=False))

    await state.files.delete("acme", "file-1")

    assert await state.files.garbage() == []


async def test_swept_garbage_is_forgotten(state: State) -> None:
    await state.files.create(_file("file-1"))
    await state.files.delete("acme", "file-1")
    assert await state.files.garbage() == ["files/1"]
    assert await state.files.garbage() == ["files/1"]

    await state.files.swept(["files/1"])

    assert await state.files.garbage() == []


async def test_the_object_of_a_deleted_file_stays_until_its_last_reader_has_ended(
    state: State, redis: Redis, namespace: str
) -> None:
    await state.files.create(_file("file-1"))
    first = await in_progress(state, input_file_id="file-1")
    second = await validating(state, input_file_id="file-1")

    await state.files.delete("acme", "file-1")
    assert await state.files.garbage() == []
    await state.apply(first, Event.LANE_FAILED)
    assert await state.files.garbage() == []
    await state.apply(second, Event.INPUT_REJECTED)

    assert await state.files.garbage() == ["files/1"]
    left = await contents(redis, namespace)
    assert not {f"{namespace}readers:file-1", f"{namespace}deleted"} & left.keys()


@pytest.mark.parametrize("status", [Status.FINALIZING, Status.CANCELLING])
async def test_a_closing_batch_still_reads_its_input(status: Status, state: State) -> None:
    batch_id = await in_status(state, status)
    await state.files.create(_file(f"file-{batch_id}"))

    await state.files.delete("acme", f"file-{batch_id}")

    assert await state.files.garbage() == []


async def test_an_ended_batch_does_not_keep_its_input(state: State) -> None:
    batch_id = await in_status(state, Status.COMPLETED)
    await state.files.create(_file(f"file-{batch_id}"))

    await state.files.delete("acme", f"file-{batch_id}")

    assert len(await state.files.garbage()) == 1


def _file(file_id: str, **changes: Any) -> FileRecord:
    file = FileRecord(
        id=file_id,
        tenant="acme",
        bytes=10,
        created_at=1,
        expires_at=None,
        filename="in.jsonl",
        purpose="batch",
        bucket="b",
        key=f"files/{file_id.removeprefix('file-')}",
        etag="e",
    )
    return file._replace(**changes)

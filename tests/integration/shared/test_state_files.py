from typing import Any

import pytest
from redis.asyncio import Redis

from shared.errors import NotFoundError
from shared.lifecycle import Event, Status
from shared.state import FileRecord, State
from tests.batches import contents, in_progress, in_status, validating


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

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.errors import NotFoundError
from shared.state import FileRecord, PartRecord, State, UploadRecord
from tests.batches import contents
from tests.eventually import eventually

NOW = int(time.time())
PAST = {"created_at": 1, "expires_at": 2}


async def test_an_upload_is_read_back_as_it_was_begun(state: State) -> None:
    upload = await _begun(state, file_seconds=3600)

    assert await state.uploads.get("acme", upload.id) == upload


async def test_anothers_upload_is_not_found(state: State) -> None:
    upload = await _begun(state)

    with pytest.raises(NotFoundError, match=f"No such Upload object: {upload.id}"):
        await state.uploads.get("globex", upload.id)


async def test_parts_come_in_any_order_and_are_read_in_the_one_asked_for(state: State) -> None:
    upload = await _begun(state)
    parts = [_part(number) for number in range(20)]

    outcomes = await asyncio.gather(*(_add(state, upload, part) for part in parts))

    assert set(outcomes) == {"ok"}
    wanted = [parts[7], None, parts[3]]
    assert await state.uploads.parts(upload.id, ["part_7", "part_x", "part_3"]) == wanted
    assert await state.uploads.parts(upload.id, []) == []


async def test_a_repeated_part_changes_nothing(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    upload = await _begun(state)
    await _add(state, upload, _part(1))
    before = await contents(redis, namespace)

    assert await _add(state, upload, _part(1)) == "ok"

    assert await contents(redis, namespace) == before


@pytest.mark.parametrize("limits", [{"max_bytes": 25}, {"max_parts": 2}])
async def test_parts_have_a_limit(limits: dict[str, int], state: State) -> None:
    upload = await _begun(state)

    outcomes = [await _add(state, upload, _part(number), **limits) for number in range(3)]

    assert outcomes == ["ok", "ok", "full"]
    assert await state.uploads.parts(upload.id, ["part_2"]) == [None]


@pytest.mark.parametrize("end", ["completed", "cancelled"])
async def test_an_end_is_for_ever_and_its_parts_are_garbage(end: str, state: State) -> None:
    upload = await _begun(state)
    await _add(state, upload, _part(1))
    await state.files.reserve("files/1", "files/1.json", seconds=60)

    assert await _end(state, upload, end) == end

    others = {"completed", "cancelled"} - {end}
    assert [await _end(state, upload, other) for other in (*others, "expired")] == [end, end]
    assert await _add(state, upload, _part(2)) == end
    assert await state.uploads.hold(upload.id, seconds=60) == end
    assert (await state.uploads.get("acme", upload.id)).status == end
    assert await state.files.garbage() == [upload.prefix]
    assert await state.uploads.parts(upload.id, ["part_1"]) == [None]


async def test_a_completed_upload_has_its_file(state: State) -> None:
    upload = await _begun(state)
    await state.files.reserve("files/1", "files/1.json", seconds=0)

    await _end(state, upload, "completed")

    found = await state.uploads.get("acme", upload.id)
    assert (found.file_id, found.fingerprint) == ("file-1", "print")
    assert await state.files.get("acme", "file-1") == _file("file-1")
    assert "files/1" not in await state.files.garbage()


async def test_of_many_completions_the_first_wins(state: State) -> None:
    upload = await _begun(state)
    files = [_file(f"file-{number}") for number in range(8)]
    for file in files:
        await state.files.reserve(file.key, seconds=60)

    await asyncio.gather(*(state.uploads.complete(upload.id, file, "print") for file in files))

    page, _ = await state.files.page("acme", after=None, limit=10)
    assert [file.id for file in page] == [(await state.uploads.get("acme", upload.id)).file_id]


async def test_a_completion_whose_objects_are_being_swept_is_none(state: State) -> None:
    upload = await _begun(state)
    await state.files.reserve("files/1", "files/1.json", seconds=0)
    await state.files.garbage()

    assert await _end(state, upload, "completed") == "swept"

    assert (await state.uploads.get("acme", upload.id)).status == "pending"
    with pytest.raises(NotFoundError):
        await state.files.get("acme", "file-1")


async def test_an_upload_whose_time_is_over_has_expired_before_anybody_says_so(
    state: State,
) -> None:
    upload = await _begun(state, **PAST)

    assert (await state.uploads.get("acme", upload.id)).status == "expired"
    assert await _add(state, upload, _part(1)) == "expired"
    assert await state.uploads.hold(upload.id, seconds=60) == "expired"
    assert await _end(state, upload, "completed") == "expired"
    assert await _end(state, upload, "cancelled") == "expired"


async def test_only_overdue_uploads_expire(state: State) -> None:
    young = await _begun(state)
    old = await _begun(state, id="upload_2", **PAST)

    assert await state.uploads.overdue() == [old.id]
    assert await state.uploads.expire(young.id) == "pending"
    assert await state.uploads.expire(old.id) == "expired"

    assert await state.uploads.overdue() == []
    assert await state.files.garbage() == [old.prefix]


async def test_what_is_held_outlives_its_time_and_ends_all_the_same(
    state: State, redis: Redis, namespace: str
) -> None:
    upload = await _begun(state, expires_at=int(time.time()) + 3600)
    assert await state.uploads.hold(upload.id, seconds=7200) == "pending"
    await state.files.reserve("files/1", "files/1.json", seconds=60)
    # Its time is over.
    await redis.hset(f"{namespace}upload:{upload.id}", "expires_at", int(time.time()) - 1)

    assert await state.uploads.overdue() == []
    assert await state.uploads.expire(upload.id) == "pending"
    assert await _end(state, upload, "completed") == "completed"


async def test_a_hold_has_an_end_however_often_it_is_asked_for(state: State) -> None:
    upload = await _begun(state, expires_at=int(time.time()) + 1)

    async def is_over() -> bool:
        return await state.uploads.hold(upload.id, seconds=1) == "expired"

    await eventually(is_over)

    assert await state.uploads.overdue() == [upload.id]


async def test_an_unknown_upload_is_missing(state: State) -> None:
    upload = _upload(id="upload_0")

    assert await _add(state, upload, _part(1)) == "missing"
    assert await state.uploads.hold(upload.id, seconds=1) == "missing"
    assert await _end(state, upload, "cancelled") == "missing"


async def test_ended_uploads_are_forgotten_after_a_day(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    upload = await _begun(state)
    await _add(state, upload, _part(1))

    await _end(state, upload, "cancelled")

    left = {key async for key in redis.scan_iter(match=f"{namespace}*", count=1000)}
    assert left == {f"{namespace}garbage", f"{namespace}upload:{upload.id}"}
    assert 0 < await redis.ttl(f"{namespace}upload:{upload.id}") <= 86_400


async def _begun(state: State, **changes: Any) -> UploadRecord:
    upload = _upload(**changes)
    await state.uploads.create(upload)
    return upload


async def _add(state: State, upload: UploadRecord, part: PartRecord, **limits: int) -> str:
    return await state.uploads.add_part(
        upload.id, part, **{"max_bytes": 1000, "max_parts": 100, **limits}
    )


async def _end(state: State, upload: UploadRecord, how: str) -> str:
    match how:
        case "completed":
            return await state.uploads.complete(upload.id, _file("file-1"), "print")
        case "cancelled":
            return await state.uploads.cancel(upload.id)
        case _:
            return await state.uploads.expire(upload.id)


def _upload(**changes: Any) -> UploadRecord:
    upload = UploadRecord(
        id="upload_1",
        tenant="acme",
        bytes=20,
        created_at=NOW,
        expires_at=NOW + 3600,
        filename="in.jsonl",
        purpose="batch",
    )
    return upload._replace(**changes)


def _part(number: int) -> PartRecord:
    return PartRecord(f"part_{number}", f"uploads/upload_1/part_{number}", "e", 10)


def _file(file_id: str) -> FileRecord:
    return FileRecord(
        id=file_id,
        tenant="acme",
        bytes=20,
        created_at=NOW,
        expires_at=None,
        filename="in.jsonl",
        purpose="batch",
        bucket="b",
        key=f"files/{file_id.removeprefix('file-')}",
        etag="e",
    )

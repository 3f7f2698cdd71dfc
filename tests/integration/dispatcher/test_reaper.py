"""What expired or was left behind is removed, and nothing else is."""

import asyncio
import time
from typing import Any

import pytest
from minio import Minio
from redis.asyncio import Redis

from dispatcher.reaper import Reaper
from shared.errors import NotFoundError
from shared.lifecycle import Event
from shared.state import FileRecord, PartRecord, State, UploadRecord
from shared.storage import Storage
from tests.batches import validating
from tests.servers import S3

NOW = int(time.time())


@pytest.fixture
def reaper(state: State, storage: Storage) -> Reaper:
    return Reaper(state, storage)


async def test_expired_files_go_with_record_and_object(
    reaper: Reaper, state: State, storage: Storage
) -> None:
    for tens in range(11):
        ids = [f"file-{tens}{number}" for number in range(10)]
        await asyncio.gather(*(_stored(state, storage, id_, expires_at=NOW) for id_ in ids))
    kept = [
        await _stored(state, storage, "file-young", expires_at=NOW + 3600),
        await _stored(state, storage, "file-forever"),
    ]

    await reaper.expire()
    await reaper.sweep()

    assert sorted(await storage.keys("")) == sorted(
        key for file in kept for key in (file.key, file.record_key)
    )
    page, _ = await state.files.page("acme", after=None, limit=200)
    assert [file.id for file in page] == ["file-forever", "file-young"]
    with pytest.raises(NotFoundError):
        await state.files.get("acme", "file-00")
    assert await state.files.expired() == []


async def test_the_object_of_an_expired_file_stays_while_a_live_batch_reads_it(
    reaper: Reaper, state: State, storage: Storage
) -> None:
    file = await _stored(state, storage, "file-1", expires_at=NOW)
    batch_id = await validating(state, input_file_id="file-1")

    await reaper.expire()
    await reaper.sweep()
    assert await storage.keys("") == [file.key]
    await state.apply(batch_id, Event.INPUT_REJECTED)
    await reaper.sweep()

    assert await storage.keys("") == []


async def test_an_object_that_is_not_ours_outlives_its_file(
    reaper: Reaper, state: State, storage: Storage
) -> None:
    file = await _stored(state, storage, "file-1", expires_at=NOW, owned=False)

    await reaper.expire()
    await reaper.sweep()

    assert await storage.keys("") == sorted([file.key, file.record_key])
    assert await state.files.expired() == []


async def test_a_file_whose_deletion_died_half_way_is_deleted_by_the_next(
    reaper: Reaper, state: State, storage: Storage
) -> None:
    file = await _stored(state, storage, "file-1", expires_at=NOW)
    await storage.remove([file.record_key])

    await reaper.expire()
    await reaper.sweep()

    assert await storage.keys("") == []


@pytest.mark.parametrize("end", ["expired", "cancelled"])
async def test_the_parts_of_an_ended_upload_are_removed(
    end: str, reaper: Reaper, state: State, storage: Storage
) -> None:
    upload = await _begun(state, storage, "upload_1", parts=3)
    living = await _begun(state, storage, "upload_2", parts=1)
    if end == "cancelled":
        await state.uploads.cancel(upload.id)
    else:
        await state.uploads.create(upload._replace(expires_at=NOW))

    await reaper.expire()
    await reaper.sweep()

    assert await storage.keys("") == [f"{living.prefix}part_0"]
    assert (await state.uploads.get("acme", upload.id)).status == end
    assert (await state.uploads.get("acme", living.id)).status == "pending"


async def test_what_was_reserved_and_never_kept_is_removed_when_its_time_has_come(
    reaper: Reaper, state: State, storage: Storage
) -> None:
    for key, seconds in (("files/dead", 0), ("files/young", 60)):
        await state.files.reserve(key, f"{key}.json", seconds=seconds)
        await storage.put(key, b"x")
        await storage.put(f"{key}.json", b"{}")

    await reaper.sweep()

    assert await storage.keys("") == ["files/young", "files/young.json"]


async def test_a_sweep_that_dies_half_way_is_done_by_the_next(
    reaper: Reaper, state: State, storage: Storage
) -> None:
    file = await _stored(state, storage, "file-1")
    await state.files.delete("acme", "file-1")
    assert await state.files.garbage() == [file.key]

    await reaper.sweep()

    assert file.key not in await storage.keys("")
    assert await state.files.garbage() == []


async def test_what_no_state_knows_of_is_swept_when_it_is_old(
    reaper: Reaper,
    state: State,
    storage: Storage,
    s3: S3,
    redis: "Redis[str]",
    namespace: str,
) -> None:
    file = await _stored(state, storage, "file-1")
    await _begun(state, storage, "upload_1", parts=2)
    await redis.delete(f"{namespace}upload:upload_1", f"{namespace}uploads")
    client = _client(s3)
    client._create_multipart_upload(storage.bucket, "files/dead", {})  # noqa: SLF001  # as an upload that died

    await reaper.sweep_abandoned()
    assert len(await storage.keys("uploads/")) == 2
    await reaper.sweep_abandoned(older_than_seconds=-3600)

    assert sorted(await storage.keys("")) == [file.key, file.record_key]
    assert client._list_multipart_uploads(storage.bucket).uploads == []  # noqa: SLF001  # shown nowhere else


async def _stored(state: State, storage: Storage, file_id: str, **changes: Any) -> FileRecord:
    key = f"files/acme/{file_id}"
    stored = await storage.put(key, b"x")
    file = FileRecord(
        id=file_id,
        tenant="acme",
        bytes=1,
        created_at=1,
        expires_at=None,
        filename="in.jsonl",
        purpose="batch",
        bucket=storage.bucket,
        key=key,
        etag=stored.etag,
    )._replace(**changes)
    await storage.put(file.record_key, b"{}")
    await state.files.create(file)
    return file


async def _begun(state: State, storage: Storage, upload_id: str, *, parts: int) -> UploadRecord:
    upload = UploadRecord(
        id=upload_id,
        tenant="acme",
        bytes=parts,
        created_at=NOW - 10,
        expires_at=NOW + 3600,
        filename="in.jsonl",
        purpose="batch",
    )
    await state.uploads.create(upload)
    for number in range(parts):
        stored = await storage.put(f"{upload.prefix}part_{number}", b"x")
        record = PartRecord(f"part_{number}", stored.key, stored.etag, 1)
        await state.uploads.add_part(upload.id, record, max_bytes=100, max_parts=100)
    return upload


def _client(s3: S3) -> Minio:
    scheme, _, address = s3.endpoint.partition("://")
    return Minio(
        address,
        access_key=s3.access_key,
        secret_key=s3.secret_key,
        secure=scheme == "https",
        region="us-east-1",
    )

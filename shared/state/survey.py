"""A walk through everything that Redis knows, in small steps, beside a fleet at work."""

from collections.abc import AsyncIterator, Sequence

from shared.state.batch_record import BatchRecord
from shared.state.client import Client
from shared.state.files import FileRecord

#: Keys that are looked at in one command, and records in one round trip.
_AT_ONCE = 500


class Survey:
    """The noun `survey` of State. What changes during a walk may be met or not, or met twice."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def batches(self) -> AsyncIterator[list[BatchRecord]]:
        """All batches."""
        async for page in self._records("batch:*"):
            yield [BatchRecord(fields) for fields in page if "id" in fields]

    async def files(self) -> AsyncIterator[list[FileRecord]]:
        """All files."""
        async for page in self._records("file:*"):
            yield [FileRecord.from_fields(fields) for fields in page]

    async def key_ids(self) -> AsyncIterator[str]:
        """The ids of all API keys."""
        async for key_id, _ in self._redis.hscan_iter(f"{self._namespace}keys", count=_AT_ONCE):
            yield key_id

    async def will_be_swept(self, members: Sequence[str]) -> set[str]:
        """Those objects and prefixes that are to be removed, now or later."""
        if not members:
            return set()
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zmscore(f"{self._namespace}garbage", members)
            pipe.zmscore(f"{self._namespace}doomed", members)
            garbage, doomed = await pipe.execute()
        due = zip(members, garbage, doomed, strict=True)
        return {name for name, *scores in due if any(score is not None for score in scores)}

    async def are_read(self, file_ids: Sequence[str]) -> set[str]:
        """Those deleted files whose objects a live batch still reads."""
        if not file_ids:
            return set()
        found = await self._redis.hmget(f"{self._namespace}deleted", list(file_ids))
        return {one for one, key in zip(file_ids, found, strict=True) if key is not None}

    async def known_keys(self, key_ids: Sequence[str]) -> set[str]:
        """Those API keys that exist."""
        if not key_ids:
            return set()
        found = await self._redis.hmget(f"{self._namespace}keys", list(key_ids))
        return {one for one, digest in zip(key_ids, found, strict=True) if digest is not None}

    async def known_uploads(self, upload_ids: Sequence[str]) -> set[str]:
        """Those uploads that exist."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for upload_id in upload_ids:
                pipe.exists(f"{self._namespace}upload:{upload_id}")
            found = await pipe.execute()
        return {one for one, exists in zip(upload_ids, found, strict=True) if exists}

    async def _records(self, pattern: str) -> AsyncIterator[list[dict[str, str]]]:
        keys: list[str] = []
        scan = self._redis.scan_iter(match=f"{self._namespace}{pattern}", count=_AT_ONCE)
        async for key in scan:
            keys.append(key)
            if len(keys) == _AT_ONCE:
                yield await self._read(keys)
                keys = []
        if keys:
            yield await self._read(keys)

    async def _read(self, keys: Sequence[str]) -> list[dict[str, str]]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
            return [fields for fields in await pipe.execute() if fields]

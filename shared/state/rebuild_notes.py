"""Notes that a rebuild keeps in Redis while it runs: files found in S3, and lines of packs."""

from collections.abc import AsyncIterator, Mapping, Sequence

from shared.state.client import Client
from shared.state.files import FileRecord

#: Entries of an index that are read in one command.
_PAGE_SIZE = 500


class RebuildNotes:
    """The noun `rebuild note` of State."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def add_files(self, file_ids: Sequence[str]) -> None:
        """Note that S3 has the records of these files."""
        if file_ids:
            await self._redis.sadd(f"{self._namespace}rebuilding:files", *file_ids)

    async def files_without_note(self) -> AsyncIterator[list[FileRecord]]:
        """Files that should have a record in S3 but were not noted."""
        async for key in self._redis.scan_iter(match=f"{self._namespace}files:*", count=1000):
            async for page in self._file_pages(key):
                async with self._redis.pipeline(transaction=False) as pipe:
                    for file_id in page:
                        pipe.sismember(f"{self._namespace}rebuilding:files", file_id)
                        pipe.hgetall(f"{self._namespace}file:{file_id}")
                    answers = await pipe.execute()
                found = [
                    FileRecord.from_fields(fields)
                    for is_seen, fields in zip(answers[::2], answers[1::2], strict=True)
                    if fields and not is_seen
                ]
                yield [file for file in found if file.has_record]

    async def add_packed(self, batches: Mapping[str, str]) -> list[str]:
        """Store the text of each batch, unless it already has one. Returns those that have one."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id, text in batches.items():
                pipe.hsetnx(f"{self._namespace}rebuilding:packed", batch_id, text)
            is_new = await pipe.execute()
        return [batch_id for batch_id, new in zip(batches, is_new, strict=True) if not new]

    async def add_rivals(self, packs: Sequence[str]) -> None:
        """Note the keys of packs with a batch that another pack has, too."""
        await self._redis.sadd(f"{self._namespace}rebuilding:rivals", *packs)

    async def take_rivals(self, *, limit: int) -> list[str]:
        """Some of the packs that were noted, which are not noted any more."""
        return list(await self._redis.spop(f"{self._namespace}rebuilding:rivals", limit) or ())

    async def packed(self, batch_id: str) -> str | None:
        """The stored text of the batch."""
        return await self._redis.hget(f"{self._namespace}rebuilding:packed", batch_id)

    async def drop_packed(self, batch_ids: Sequence[str]) -> None:
        """Remove the texts of batches that are done."""
        if batch_ids:
            await self._redis.hdel(f"{self._namespace}rebuilding:packed", *batch_ids)

    async def sample_packed(self, *, limit: int) -> list[str]:
        """Ids of some batches that have a stored text."""
        found = await self._redis.hrandfield(f"{self._namespace}rebuilding:packed", limit)
        return found or []

    async def clear(self) -> None:
        """Remove all notes."""
        await self._redis.unlink(
            *(f"{self._namespace}rebuilding:{what}" for what in ("files", "packed", "rivals"))
        )

    async def _file_pages(self, index: str) -> AsyncIterator[list[str]]:
        last = "-inf"
        while page := await self._redis.zrange(
            index, last, "+inf", byscore=True, offset=0, num=_PAGE_SIZE, withscores=True
        ):
            yield [file_id for file_id, _ in page]
            last = f"({page[-1][1]:.0f}"

"""File records: where an uploaded or produced object is stored, and who owns it."""

import json
import time
from collections.abc import Mapping
from typing import NamedTuple

from shared.errors import BatchyardError, NotFoundError
from shared.openai.shapes import File
from shared.state.client import Client
from shared.state.rebuilding import read_for_sure
from shared.state.scripts import Scripts
from shared.storage import Stored


def deleted_key(tenant: str, file_id: str) -> str:
    """The S3 key that marks a file without a record of its own as deleted."""
    return f"deleted/{tenant}/{file_id}"


class FileRecord(NamedTuple):
    """A file and its object in S3. Deleting the file also deletes an `owned` object.

    The file is bytes [start, end) of the object, which usually is all of it.
    """

    id: str
    tenant: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    bucket: str
    key: str
    etag: str
    owned: bool = True
    start: int = 0
    #: Of all its bytes; empty if nobody has computed it.
    sha256: str = ""

    @classmethod
    def stored(
        cls,
        file_id: str,
        tenant: str,
        stored: Stored,
        *,
        bucket: str,
        created_at: int,
        seconds: int | None,
        filename: str,
        purpose: str,
    ) -> "FileRecord":
        """A file whose object Batchyard wrote: an upload, the input of a retry, or a result.

        `seconds` is how long the file is kept; None for ever.
        """
        return cls(
            id=file_id,
            tenant=tenant,
            bytes=stored.size,
            created_at=created_at,
            expires_at=None if seconds is None else created_at + seconds,
            filename=filename,
            purpose=purpose,
            bucket=bucket,
            key=stored.key,
            etag=stored.etag,
        )

    @classmethod
    def missing(cls, file_id: str, tenant: str, *, bucket: str, key: str) -> "FileRecord":
        """A file whose object does not exist, for a batch that fails because of it."""
        return cls(
            id=file_id,
            tenant=tenant,
            bytes=0,
            created_at=0,
            expires_at=None,
            filename="",
            purpose="batch",
            bucket=bucket,
            key=key,
            etag="none",
        )

    @property
    def end(self) -> int | None:
        """None for an empty file, so that reading it still checks that the object exists."""
        return self.start + self.bytes or None

    @property
    def record_key(self) -> str:
        """The S3 key of the file's record, which a rebuild of Redis reads."""
        return f"{self.key}.json"

    @property
    def has_record(self) -> bool:
        """Whether S3 has a record of the file. Other files are found through their batch."""
        return self.owned and self.key.startswith("files/")

    @property
    def deleted_key(self) -> str:
        """The S3 key that marks the file as deleted if it has no record."""
        return deleted_key(self.tenant, self.id)

    @property
    def has_expired(self) -> bool:
        """Whether the file has expired. An expired file is hidden from everybody."""
        return self.expires_at is not None and self.expires_at <= time.time()

    def to_fields(self) -> dict[str, str | int]:
        """The hash in Redis. Unset fields are left out."""
        fields: dict[str, str | int] = {
            name: value for name, value in self._asdict().items() if value is not None
        }
        for name in ("start", "sha256"):
            if not fields[name]:
                del fields[name]
        return {**fields, "owned": int(self.owned)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> "FileRecord":
        """The inverse of `to_fields`."""
        return cls(
            id=fields["id"],
            tenant=fields["tenant"],
            bytes=int(fields["bytes"]),
            created_at=int(fields["created_at"]),
            expires_at=int(fields["expires_at"]) if "expires_at" in fields else None,
            filename=fields["filename"],
            purpose=fields["purpose"],
            bucket=fields["bucket"],
            key=fields["key"],
            etag=fields["etag"],
            owned=fields["owned"] == "1",
            start=int(fields.get("start", 0)),
            sha256=fields.get("sha256", ""),
        )

    def to_openai(self) -> File:
        """The file as the HTTP API shows it."""
        return File(
            id=self.id,
            bytes=self.bytes,
            created_at=self.created_at,
            expires_at=self.expires_at,
            filename=self.filename,
            purpose=self.purpose,
        )


class StoredBytesError(BatchyardError):
    """The tenant would have more bytes in S3 than it may; it has `used` now."""

    def __init__(self, used: int) -> None:
        super().__init__(f"The tenant has {used} bytes stored, and may not have so many more.")
        self.used = used


class Files:
    """The noun `file` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def reserve(self, *keys: str, seconds: int, file_id: str = "") -> bool:
        """Let the sweeper remove these objects after `seconds`, unless a file keeps them first.

        Returns False, and changes nothing, if the file with this id has already kept them.
        """
        return bool(await self._scripts.run("reserve", seconds, file_id, *keys))

    async def unreserve(self, *keys: str) -> None:
        """Cancel a reservation whose objects were never written."""
        await self._redis.zrem(f"{self._namespace}garbage", *keys)

    async def create(self, file: FileRecord) -> None:
        """Make the file visible to its tenant; a repeat changes nothing."""
        await self._scripts.run("create_file", json.dumps(file.to_fields()), "", "")

    async def keep(self, file: FileRecord, *, max_bytes: int | None = None) -> bool:
        """`create` for reserved objects. Returns False if the reservation has expired.

        Raises StoredBytesError if the tenant would have more than `max_bytes` in its files.
        """
        limit = "" if max_bytes is None else max_bytes
        fields = json.dumps(file.to_fields())
        outcome: str = await self._scripts.run("create_file", fields, "1", limit)
        if outcome.isdigit():
            raise StoredBytesError(int(outcome))
        return outcome == "ok"

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        """The tenant's file. Raises NotFoundError, also for another tenant's file.

        Raises TransientError if it may be missing for a rebuild.
        """
        key = f"{self._namespace}file:{file_id}"
        fields = await self._redis.hgetall(key)
        if not fields:
            [fields] = await read_for_sure(
                self._redis, self._namespace, lambda pipe: pipe.hgetall(key)
            )
        if not fields or fields["tenant"] != tenant:
            raise NotFoundError(f"No such File object: {file_id}", param="id")
        return FileRecord.from_fields(fields)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete the file, and its object once no live batch reads it. Raises NotFoundError."""
        if not await self._scripts.run("delete_file", tenant, file_id):
            raise NotFoundError(f"No such File object: {file_id}", param="id")

    async def adapters(self, tenant: str) -> frozenset[str]:
        """The ids of the tenant's files that are LoRA adapters."""
        return frozenset(await self._redis.smembers(f"{self._namespace}adapters:{tenant}"))

    async def stored_bytes(self, tenant: str) -> int:
        """The bytes of the tenant's files, and of the parts of its pending uploads."""
        return max(0, int(await self._redis.hget(f"{self._namespace}stored", tenant) or 0))

    async def set_etag(self, file_id: str, etag: str) -> None:
        """Note that the file's object was written again, if the file still exists."""
        await self._scripts.run("set_etag", file_id, etag)

    async def many(self, file_ids: list[str]) -> list[FileRecord]:
        """The records that exist, of any tenant, in one round trip."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for file_id in file_ids:
                pipe.hgetall(f"{self._namespace}file:{file_id}")
            return [FileRecord.from_fields(fields) for fields in await pipe.execute() if fields]

    async def page(
        self,
        tenant: str,
        *,
        after: str | None,
        limit: int,
        newest_first: bool = True,
        purpose: str | None = None,
    ) -> tuple[list[FileRecord], bool]:
        """A tenant's files after the cursor, and whether there are more of that purpose.

        New and deleted files do not shift other pages. A cursor stays valid for a day after its
        file is deleted. An unknown cursor gives an empty page.
        """
        index = f"{self._namespace}files:{tenant}"
        place = await self._place(tenant, after) if after is not None else ""
        if place is None:
            return [], False
        found: list[FileRecord] = []
        # Purposes are filtered after reading, so this reads on until the page is full.
        wanted = max(limit + 1, 100)
        while len(found) <= limit:
            start, end = (f"({place}" if place else "-inf"), "+inf"
            if newest_first:
                start, end = (f"({place}" if place else "+inf"), "-inf"
            ids = await self._redis.zrange(
                index,
                start,
                end,
                desc=newest_first,
                byscore=True,
                offset=0,
                num=wanted,
                withscores=True,
            )
            found += [
                file
                for file in await self.many([file_id for file_id, _ in ids])
                if (purpose is None or file.purpose == purpose) and not file.has_expired
            ]
            if len(ids) < wanted:
                break
            place = _score(ids[-1][1])
        return found[:limit], len(found) > limit

    async def expired(self, *, limit: int = 100) -> list[FileRecord]:
        """Expired files, the longest expired first."""
        seconds, _ = await self._redis.time()
        return await self.many(
            await self._redis.zrangebyscore(
                f"{self._namespace}expiring", "-inf", seconds, start=0, num=limit
            )
        )

    async def garbage(self, *, limit: int = 100) -> list[str]:
        """Keys of objects that nothing refers to any more and no file can keep."""
        return await self._scripts.run("take_garbage", limit)

    async def swept(self, keys: list[str]) -> None:
        """Forget garbage whose objects were removed."""
        await self._redis.zrem(f"{self._namespace}doomed", *keys)

    async def _place(self, tenant: str, file_id: str) -> str | None:
        """The file's position in the tenant's listing, also if it was deleted; None if unknown."""
        # In this order, a file that is being deleted is found in one place or the other.
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zscore(f"{self._namespace}files:{tenant}", file_id)
            pipe.get(f"{self._namespace}gone:{file_id}")
            score, gone = await pipe.execute()
        if score is not None:
            return _score(score)
        place, _, whose = (gone or "").partition(" ")
        return place if place and whose == tenant else None


def _score(score: float) -> str:
    """All digits of the score: Redis may write a number of 16 digits with an exponent."""
    return f"{score:.0f}"

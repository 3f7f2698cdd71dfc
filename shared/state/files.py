"""File records: where an uploaded or produced object lies, and whose it is."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from shared.errors import NotFoundError
from shared.openai import File
from shared.state.client import Client
from shared.state.scripts import Scripts


class FileRecord(NamedTuple):
    """A file and its object in S3; `owned` objects go when the file is deleted."""

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

    def to_fields(self) -> dict[str, str | int]:
        """What Redis keeps; an unset field is left out."""
        fields: dict[str, str | int] = {
            name: value for name, value in self._asdict().items() if value is not None
        }
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
        )

    def to_openai(self) -> File:
        """The file as HTTP shows it."""
        return File(
            id=self.id,
            bytes=self.bytes,
            created_at=self.created_at,
            expires_at=self.expires_at,
            filename=self.filename,
            purpose=self.purpose,
        )


class Files:
    """The noun `file` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def create(self, file: FileRecord) -> None:
        """Make the file visible to its tenant; a repeat changes nothing."""
        await self._scripts.run("create_file", json.dumps(file.to_fields()))

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        """The tenant's file. Raises NotFoundError, for another tenant's as for none."""
        fields = await self._redis.hgetall(f"{self._namespace}file:{file_id}")
        if not fields or fields["tenant"] != tenant:
            raise NotFoundError(f"No such File object: {file_id}", param="id")
        return FileRecord.from_fields(fields)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Forget the file; its object goes when no live batch reads it. Raises NotFoundError."""
        if not await self._scripts.run("delete_file", tenant, file_id):
            raise NotFoundError(f"No such File object: {file_id}", param="id")

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

        An unknown cursor gives an empty page.
        """
        index = f"{self._namespace}files:{tenant}"
        position = 0
        if after is not None:
            rank = await (
                self._redis.zrevrank(index, after)
                if newest_first
                else self._redis.zrank(index, after)
            )
            if rank is None:
                return [], False
            position = rank + 1
        found: list[FileRecord] = []
        # A purpose is filtered after reading, so pages are read on until the answer is full.
        while len(found) <= limit:
            ids = await self._redis.zrange(
                index, position, position + max(limit, 100), desc=newest_first
            )
            if not ids:
                break
            position += len(ids)
            found += [
                file for file in await self._many(ids) if purpose is None or file.purpose == purpose
            ]
        return found[:limit], len(found) > limit

    async def garbage(self, *, limit: int = 100) -> list[str]:
        """Keys of objects that nothing refers to any more."""
        return await self._redis.zrange(f"{self._namespace}garbage", 0, limit - 1)

    async def swept(self, keys: list[str]) -> None:
        """Forget garbage whose objects are gone."""
        await self._redis.zrem(f"{self._namespace}garbage", *keys)

    async def _many(self, file_ids: list[str]) -> list[FileRecord]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for file_id in file_ids:
                pipe.hgetall(f"{self._namespace}file:{file_id}")
            return [FileRecord.from_fields(fields) for fields in await pipe.execute() if fields]

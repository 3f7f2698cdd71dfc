"""Uploads: files that arrive in parts, until they are completed, cancelled or expired."""

import json
from collections.abc import Sequence
from typing import Literal, NamedTuple

from shared.errors import NotFoundError
from shared.openai.shapes import File, Upload
from shared.state.client import Client
from shared.state.files import FileRecord
from shared.state.scripts import Scripts

UploadStatus = Literal["pending", "completed", "cancelled", "expired"]


class PartRecord(NamedTuple):
    """A part of an upload, and its object in S3."""

    id: str
    key: str
    etag: str
    size: int


class UploadRecord(NamedTuple):
    """An upload. Times are Unix seconds."""

    id: str
    tenant: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    #: How long the file will be kept; None for ever.
    file_seconds: int | None = None
    status: UploadStatus = "pending"
    file_id: str | None = None
    #: A digest of the parts of the file and of their order.
    fingerprint: str | None = None

    @property
    def prefix(self) -> str:
        """The prefix of its parts' objects, which are all removed when the upload ends."""
        return f"uploads/{self.id}/"

    def to_openai(self, file: File | None = None) -> Upload:
        """The upload as the HTTP API shows it."""
        return Upload(
            id=self.id,
            bytes=self.bytes,
            created_at=self.created_at,
            expires_at=self.expires_at,
            filename=self.filename,
            purpose=self.purpose,
            status=self.status,
            file=file,
        )


class Uploads:
    """The noun `upload` of State. An upload is kept for a day after its end."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def create(self, upload: UploadRecord) -> None:
        """Start the upload."""
        fields = {name: value for name, value in upload._asdict().items() if value is not None}
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(f"{self._namespace}upload:{upload.id}", mapping=fields)
            pipe.zadd(f"{self._namespace}uploads", {upload.id: upload.expires_at})
            await pipe.execute()

    async def get(self, tenant: str, upload_id: str) -> UploadRecord:
        """The tenant's upload. Raises NotFoundError, also for another tenant's upload."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(f"{self._namespace}upload:{upload_id}")
            pipe.time()
            fields, (now, _) = await pipe.execute()
        if not fields or fields["tenant"] != tenant:
            raise NotFoundError(f"No such Upload object: {upload_id}", param="id")
        status = fields["status"]
        ends = max(int(fields["expires_at"]), int(fields.get("held_until", 0)))
        return UploadRecord(
            id=fields["id"],
            tenant=fields["tenant"],
            bytes=int(fields["bytes"]),
            created_at=int(fields["created_at"]),
            expires_at=int(fields["expires_at"]),
            filename=fields["filename"],
            purpose=fields["purpose"],
            file_seconds=int(fields["file_seconds"]) if "file_seconds" in fields else None,
            status="expired" if status == "pending" and now >= ends else status,
            file_id=fields.get("file_id"),
            fingerprint=fields.get("fingerprint"),
        )

    async def add_part(
        self,
        upload_id: str,
        part: PartRecord,
        *,
        max_bytes: int,
        max_parts: int,
        tenant_bytes: int | None = None,
    ) -> str:
        """Record a part whose object is written. A repeat changes nothing.

        Returns "ok", "full" if the parts would exceed a maximum, "too_much" if the tenant would
        have more than `tenant_bytes`, "missing", or the status of an upload that has ended.
        """
        return await self._scripts.run(
            "add_part",
            upload_id,
            part.id,
            json.dumps(part[1:]),
            part.size,
            max_bytes,
            max_parts,
            "" if tenant_bytes is None else tenant_bytes,
        )

    async def parts(self, upload_id: str, part_ids: Sequence[str]) -> list[PartRecord | None]:
        """The parts in the requested order; None for each part that does not exist."""
        if not part_ids:
            return []
        found = await self._redis.hmget(f"{self._namespace}upload_parts:{upload_id}", part_ids)
        return [
            PartRecord(part_id, *json.loads(text)) if text else None
            for part_id, text in zip(part_ids, found, strict=True)
        ]

    async def hold(self, upload_id: str, *, seconds: int) -> str:
        """Keep a pending upload from expiring for `seconds` while its file is assembled.

        Returns its status, or "missing". Holding it twice has the same effect as once.
        """
        return await self._scripts.run("hold_upload", upload_id, seconds)

    async def complete(self, upload_id: str, file: FileRecord, fingerprint: str) -> str:
        """End a pending upload with its file, whose objects were reserved. The first call wins.

        Returns the upload's new status, "missing", or "swept" if the reservation has expired.
        """
        return await self._scripts.run(
            "end_upload", upload_id, "completed", json.dumps(file.to_fields()), fingerprint
        )

    async def cancel(self, upload_id: str) -> str:
        """Cancel a pending upload. Returns its new status, or "missing"."""
        return await self._scripts.run("end_upload", upload_id, "cancelled", "", "")

    async def expire(self, upload_id: str) -> str:
        """End an overdue upload. Returns its new status, or "missing"."""
        return await self._scripts.run("end_upload", upload_id, "expired", "", "")

    async def overdue(self, *, limit: int = 100) -> list[str]:
        """Ids of overdue uploads, the longest overdue first."""
        seconds, _ = await self._redis.time()
        return await self._redis.zrangebyscore(
            f"{self._namespace}uploads", "-inf", seconds, start=0, num=limit
        )

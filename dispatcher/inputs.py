"""Where the input of a batch from the bus lies, and whether its tenant may read it."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared import ids
from shared.bus.messages import FileInput, Reason, RejectedError, S3Input
from shared.errors import NotFoundError
from shared.settings import THIRTY_DAYS
from shared.state import State
from shared.storage import ForbiddenError, Storage


class Inputs:
    """Finds inputs; what it returns are fields of a manifest.

    `tenant_prefix` is in our own bucket, `places` are `s3://bucket/prefix/` by tenant; `{tenant}`
    in them stands for the tenant, and `*` for every tenant. The file records that they get last for
    `file_seconds`.
    """

    def __init__(
        self,
        state: State,
        storage: Storage,
        *,
        tenant_prefix: str,
        places: Mapping[str, Sequence[str]],
        max_bytes: int,
        file_seconds: int = THIRTY_DAYS,
    ) -> None:
        self._state = state
        self._storage = storage
        self._own = f"s3://{storage.bucket}/{tenant_prefix}"
        self._places = places
        self._max_bytes = max_bytes
        self._file_seconds = file_seconds

    def unplaced(self) -> dict[str, Any]:
        """An input that is still to be packed."""
        unknown = {"bucket": "", "key": "", "etag": "", "size": 0}
        return {**unknown, "is_foreign": True, "file_seconds": self._file_seconds}

    async def find(self, tenant: str, batch_id: str, wanted: S3Input | FileInput) -> dict[str, Any]:
        """What exists already. Raises RejectedError where the tenant may not have it."""
        if isinstance(wanted, S3Input):
            return await self._object(tenant, batch_id, wanted)
        return await self._file(tenant, wanted.file_id)

    async def _object(self, tenant: str, batch_id: str, wanted: S3Input) -> dict[str, Any]:
        self._require_readable(tenant, wanted)
        self._require_small(wanted.size, "input.size")
        try:
            found = await self._storage.stat(
                wanted.key, bucket=wanted.bucket, version_id=wanted.version_id
            )
        except ForbiddenError as error:
            raise _refused(
                "schema_invalid", "input.key", "S3 does not let Batchyard read that object."
            ) from error
        except NotFoundError as error:
            raise _refused("schema_invalid", "input.key", str(error)) from error
        if found.etag != wanted.etag.strip('"') or found.size != wanted.size:
            raise _refused(
                "input_changed",
                "input.etag",
                f"the object has the ETag '{found.etag}' and {found.size} bytes, which is not what "
                "the message says.",
            )
        return {
            "input_file_id": ids.input_file_id(batch_id),
            "bucket": wanted.bucket,
            "key": wanted.key,
            "etag": found.etag,
            "size": found.size,
            "version_id": wanted.version_id or "",
            "sha256": wanted.sha256 or "",
            "is_foreign": True,
            "file_seconds": self._file_seconds,
        }

    async def _file(self, tenant: str, file_id: str) -> dict[str, Any]:
        try:
            file = await self._state.files.get(tenant, file_id)
        except NotFoundError as error:
            raise _refused("schema_invalid", "input.file_id", str(error)) from error
        if file.has_expired:
            raise _refused("schema_invalid", "input.file_id", f"No such File object: {file_id}")
        if file.purpose != "batch":
            raise _refused(
                "schema_invalid",
                "input.file_id",
                f"the file's purpose is '{file.purpose}', not 'batch'.",
            )
        self._require_small(file.bytes, "input.file_id")
        return {
            "input_file_id": file.id,
            "bucket": file.bucket,
            "key": file.key,
            "etag": file.etag,
            "size": file.bytes,
            "start": file.start,
        }

    def _require_readable(self, tenant: str, wanted: S3Input) -> None:
        patterns = [self._own, *self._places.get("*", ()), *self._places.get(tenant, ())]
        places = [pattern.replace("{tenant}", tenant) for pattern in patterns]
        # On the way to S3, `..` would lead out of the prefix.
        is_plain = not {".", ".."} & set(wanted.key.split("/"))
        address = f"s3://{wanted.bucket}/{wanted.key}"
        if not is_plain or "/" in wanted.bucket or not address.startswith(tuple(places)):
            raise _refused(
                "schema_invalid",
                "input.key",
                f"only objects under {', '.join(places)} may be read.",
            )

    def _require_small(self, size: int, param: str) -> None:
        if size > self._max_bytes:
            raise _refused(
                "too_large",
                param,
                f"the input has {size} bytes; at most {self._max_bytes} are allowed.",
            )


def _refused(code: str, param: str, text: str) -> RejectedError:
    return RejectedError([Reason(code, f"{param}: {text}", param)])

"""What an upload and its parts must be, and the errors where they are not. Pure."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from gateway.file_rules import PURPOSES, ExpiresAfter
from shared.errors import InvalidInputError, NotFoundError
from shared.integers import Integer

#: 64 MiB: the size of the SDKs' parts.
MAX_PART_BYTES = 67_108_864
MAX_PARTS = 10_000
_MAX_SHOWN_CHARACTERS = 100


class CreateUpload(BaseModel):
    """The body of `create_upload`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    bytes: Integer = Field(ge=0, description="The size of the whole file.")
    filename: str = Field(min_length=1)
    mime_type: str = Field(max_length=255)
    purpose: str = Field(json_schema_extra={"enum": list(PURPOSES)})
    expires_after: ExpiresAfter | None = None


class CompleteUpload(BaseModel):
    """The body of `complete_upload`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    part_ids: list[str] = Field(description="The parts, in the order of their bytes in the file.")
    md5: str | None = Field(
        default=None, pattern="^[0-9a-fA-F]{32}$", description="The checksum of the whole file."
    )


def require_size(size: int, purpose: str, *, max_bytes: int) -> None:
    """Raise InvalidInputError for a file that is larger than its purpose allows."""
    if size > max_bytes:
        raise InvalidInputError(
            f"Invalid 'bytes': integer above maximum value. Expected a value <= {max_bytes} for "
            f"purpose '{purpose}', but got {size} instead.",
            param="bytes",
            code="integer_above_max_value",
        )


def require_whole(
    upload_id: str, upload_bytes: int, part_ids: Sequence[str], sizes: Sequence[int | None]
) -> None:
    """Raise InvalidInputError for parts that cannot be the file.

    `sizes` are those of the upload's parts with these ids, None for an id that it does not have.
    """
    for place, (part_id, size) in enumerate(zip(part_ids, sizes, strict=True)):
        if size is None:
            shown = part_id[:_MAX_SHOWN_CHARACTERS]
            raise _bad_parts(f"upload '{upload_id}' has no part '{shown}'.", f"part_ids[{place}]")
    for part_id, count in Counter(part_ids).items():
        if count > 1:
            raise _bad_parts(f"part '{part_id}' is named {count} times.")
    size = sum(size for size in sizes if size)
    if size != upload_bytes:
        raise _bad_parts(
            f"the parts have {size} bytes together, but upload '{upload_id}' was created with "
            f"'bytes' {upload_bytes}."
        )


def fingerprint(part_ids: Sequence[str]) -> str:
    """The same for the same parts in the same order."""
    return hashlib.sha256("\0".join(part_ids).encode()).hexdigest()


def completed_otherwise(upload_id: str) -> InvalidInputError:
    """The error for a second completion that names other parts than the first."""
    return _bad_parts(f"upload '{upload_id}' has been completed with other parts.")


def wrong_md5(expected: str, found: str) -> InvalidInputError:
    """The error for parts that have another checksum than the client's."""
    return InvalidInputError(
        f"Invalid 'md5': expected '{expected}', but the parts in this order have '{found}'.",
        param="md5",
        code="invalid_value",
    )


def too_late(verb: str, upload_id: str, status: str) -> InvalidInputError | NotFoundError:
    """The error for an upload that has ended."""
    if status == "missing":
        return NotFoundError(f"No such Upload object: {upload_id}", param="id")
    return InvalidInputError(
        f"Cannot {verb} upload '{upload_id}' with status '{status}'.",
        param="upload_id",
        code="invalid_value",
    )


def full(upload_id: str, upload_bytes: int) -> InvalidInputError:
    """The error for an upload that has as many parts, or bytes in parts, as it may have."""
    return InvalidInputError(
        f"Upload '{upload_id}' takes no more parts: it may have at most {MAX_PARTS} parts, and not "
        f"many more bytes than its 'bytes' {upload_bytes}. Complete it with the parts that it has, "
        "or create another upload.",
        param="data",
        code="invalid_value",
    )


def _bad_parts(why: str, param: str = "part_ids") -> InvalidInputError:
    return InvalidInputError(f"Invalid '{param}': {why}", param=param, code="invalid_value")

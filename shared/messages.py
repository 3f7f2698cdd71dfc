"""What services publish: the message `batch.submit/1`, checked to the field. Does no I/O."""

import gzip
import hashlib
import io
import json
import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.errors import InvalidInputError

SUBMIT = "batch.submit.v1"
#: From our own gateway only: a batch with manifest and record waits for its plan.
READY = "batch.ready.v1"
MESSAGE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
#: Of a body after decoding; larger inputs come as a reference to an object.
MAX_BODY_BYTES = 1024 * 1024
_MAX_INFLATED_BYTES = 8 * 1024 * 1024


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InlineRequest(_Shape):
    """One request line, as in an input file."""

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


class InlineInput(_Shape):
    kind: Literal["inline"]
    requests: list[InlineRequest] = Field(min_length=1, max_length=1000)


class S3Input(_Shape):
    kind: Literal["s3"]
    bucket: str
    key: str = Field(max_length=1024)
    etag: str
    version_id: str | None = None
    size: int = Field(ge=1, le=209_715_200)
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")


class FileInput(_Shape):
    kind: Literal["file"]
    file_id: str = Field(pattern="^file-[A-Za-z0-9_-]{1,64}$")


class Submission(_Shape):
    """The body of a message of type `batch.submit.v1`."""

    version: Literal["batch.submit/1"] = Field(alias="schema")
    endpoint: str
    completion_window: str = Field(default="24h", pattern="^[1-9][0-9]{0,2}[hd]$")
    not_after: datetime | None = None
    priority: int = Field(default=5, ge=0, le=9)
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None,
        Field(max_length=16),
    ] = None
    input: InlineInput | S3Input | FileInput = Field(discriminator="kind")


def decode_submission(body: bytes, *, content_encoding: str | None = None) -> Submission:
    """The message's body as a value. Raises InvalidInputError that names the field."""
    if content_encoding == "gzip":
        body = _inflate(body)
    if len(body) > MAX_BODY_BYTES:
        raise InvalidInputError(
            f"The message has {len(body)} bytes; at most {MAX_BODY_BYTES} are allowed. "
            "Put the requests into an object and refer to it.",
            code="too_large",
        )
    try:
        return Submission.model_validate(json.loads(body))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        param = path(first["loc"])
        raise InvalidInputError(
            f"{param}: {first['msg']}", param=param, code="schema_invalid"
        ) from None
    except (ValueError, RecursionError):
        # The decoder's own message would quote the body.
        raise InvalidInputError("The body is not JSON.", code="schema_invalid") from None


def fingerprint(submission: Submission) -> str:
    """A digest of what was asked for: equal for equal submissions, however they were written."""
    canonical = json.dumps(submission.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def window_seconds(window: str) -> int:
    """`24h` or `7d` in seconds."""
    return int(window[:-1]) * {"h": 3600, "d": 86_400}[window[-1]]


def path(location: tuple[int | str, ...]) -> str:
    """A pydantic error location as `input.requests[3].custom_id`."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".")


def _inflate(body: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            inflated = packed.read(_MAX_INFLATED_BYTES + 1)
    except (OSError, EOFError) as error:
        raise InvalidInputError("The body is not gzip.", code="unsupported_media") from error
    if len(inflated) > _MAX_INFLATED_BYTES:
        raise InvalidInputError(
            f"The message inflates to more than {_MAX_INFLATED_BYTES} bytes.", code="too_large"
        )
    return inflated

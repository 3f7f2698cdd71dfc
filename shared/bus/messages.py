"""What services publish: the fields of `batch.submit/1` and `batch.cancel/1`. Does no I/O."""

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from shared.answer_cache import Cache
from shared.dataset.dataset import Dataset
from shared.errors import InvalidInputError
from shared.integers import Integer, Priority
from shared.table.output import Output

M = TypeVar("M", bound=BaseModel)

SUBMIT = "batch.submit.v1"
CANCEL = "batch.cancel.v1"
REPLY = "batch.reply.v1"
#: From our own gateway only: a batch has its manifest and its record, and waits for its plan.
READY = "batch.ready.v1"
MESSAGE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
#: The limit of a body after decoding. Larger inputs are named as objects in S3.
MAX_BODY_BYTES = 1024 * 1024
_LARGE_INPUTS = "Put the requests into an object in S3, and name that as the input."
_MAX_INFLATED_BYTES = 8 * 1024 * 1024
#: Inflated bytes for each compressed byte.
_MAX_RATIO = 100
#: Characters of the path in an error: a sender may give an unknown field a name of any length.
_MAX_PATH = 200
#: Reasons that are kept: even a small message may be wrong in very many places.
MAX_REASONS = 1000


class Reason(NamedTuple):
    """One thing that is wrong with a message; `param` is the field or property."""

    code: str
    message: str
    param: str | None = None


class RejectedError(InvalidInputError):
    """A message that breaks the contract, with every reason. `count` is how many there were.

    `is_dead` says that it becomes a dead letter even if its sender gets an answer.
    """

    def __init__(self, reasons: Iterable[Reason], *, is_dead: bool = False) -> None:
        every = tuple(reasons)
        super().__init__(every[0].message, param=every[0].param, code=every[0].code)
        self.reasons: Sequence[Reason] = every[:MAX_REASONS]
        self.count = len(every)
        self.is_dead = is_dead


#: RFC 3339 as a pattern: most validators ignore `format`.
_RFC_3339 = (
    r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
#: S3's own limits, in bytes of UTF-8.
_MAX_KEY_BYTES = 1024
_MAX_VERSION_BYTES = 1024
#: A schema keyword of ours, because JSON Schema cannot limit the bytes of a string.
MAX_BYTES_KEYWORD = "x-max-bytes"


def _moment(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(_RFC_3339, value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass  # such as 30 February
    raise PydanticCustomError(
        "rfc_3339", "Input should be a time with its zone, such as 2026-12-24T18:00:00Z"
    )


def _at_most_bytes(maximum: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        if len(text.encode()) > maximum:
            raise PydanticCustomError(
                "too_many_bytes", "String should have at most {max} bytes", {"max": maximum}
            )
        return text

    return check


#: A time with its zone, as RFC 3339 writes it.
Moment = Annotated[
    AwareDatetime, BeforeValidator(_moment), Field(json_schema_extra={"pattern": _RFC_3339})
]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _without_nan(body: dict[str, Any]) -> dict[str, Any]:
    """Python accepts NaN and 1e999 as numbers, but JSON files cannot hold them."""
    try:
        json.dumps(body, allow_nan=False)
    except ValueError:
        raise ValueError("a number is not finite or has too many digits") from None
    return body


#: The body of a request, as JSON can hold it.
RequestBody = Annotated[dict[str, Any], AfterValidator(_without_nan)]


class InlineRequest(_Shape):
    """One request line, as in an input file."""

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: str
    body: RequestBody


class InlineInput(_Shape):
    kind: Literal["inline"]
    requests: list[InlineRequest] = Field(min_length=1, max_length=1000)


class S3Input(_Shape):
    kind: Literal["s3"]
    bucket: str = Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$")
    key: Annotated[str, AfterValidator(_at_most_bytes(_MAX_KEY_BYTES))] = Field(
        min_length=1,
        max_length=_MAX_KEY_BYTES,
        pattern=_NO_CONTROLS,
        json_schema_extra={MAX_BYTES_KEYWORD: _MAX_KEY_BYTES},
    )
    etag: str = Field(min_length=1, max_length=256, pattern=_NO_CONTROLS)
    #: S3 makes version ids of URL-safe characters, so characters are bytes here.
    version_id: Annotated[str, Field(max_length=_MAX_VERSION_BYTES, pattern="^[!-~]*$")] | None = (
        None
    )
    size: Integer = Field(ge=1, le=209_715_200)
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")


class FileInput(_Shape):
    kind: Literal["file"]
    file_id: str = Field(pattern="^file-[A-Za-z0-9_-]{1,64}$")


class DatasetInput(Dataset):
    """Rows of a table or a folder, each of which becomes a request."""

    kind: Literal["dataset"]


class OpenInput(_Shape):
    """No input yet: requests are added to the batch until it is closed."""

    kind: Literal["open"]
    #: Of all requests.
    model: str = Field(min_length=1, max_length=256)


class Deliver(_Shape):
    """What the batch's last event carries besides its state."""

    results: bool = Field(default=False, strict=True)


class Submission(_Shape):
    """The body of a message of type `batch.submit.v1`."""

    version: Literal["batch.submit/1"] = Field(alias="schema")
    endpoint: str
    completion_window: str = Field(default="24h", pattern="^[1-9][0-9]{0,2}[hd]$")
    not_after: Moment | None = None
    priority: Priority = 5
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None,
        Field(max_length=16),
    ] = None
    input: InlineInput | S3Input | FileInput | DatasetInput | OpenInput = Field(
        discriminator="kind"
    )
    # Omitted if unset, so that old fingerprints stay valid.
    deliver: Deliver | None = Field(default=None, exclude_if=lambda deliver: deliver is None)
    output: Output | None = Field(default=None, exclude_if=lambda output: output is None)
    cache: Cache | bool | None = Field(default=None, exclude_if=lambda cache: not cache)


class Cancellation(_Shape):
    """The body of a message of type `batch.cancel.v1`."""

    version: Literal["batch.cancel/1"] = Field(alias="schema")
    batch_id: str = Field(pattern="^batch_[0-9a-f]{32}$")


def decode_submission(body: bytes, *, content_encoding: str | None = None) -> Submission:
    """The message's body as a value. Raises RejectedError that names every wrong field."""
    return checked(unpacked(body, content_encoding), Submission)


def decode_cancellation(body: bytes, *, content_encoding: str | None = None) -> Cancellation:
    """What `decode_submission` does, for a cancellation."""
    return checked(unpacked(body, content_encoding), Cancellation)


def fingerprint(submission: Submission) -> str:
    """A digest of the submission: equal for equal submissions, however they are written."""
    canonical = json.dumps(submission.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def window_seconds(window: str) -> int:
    """`24h` or `7d` in seconds."""
    return int(window[:-1]) * {"h": 3600, "d": 86_400}[window[-1]]


#: Of inputs. A dataset that is given by HTTP has no kind, and no field of such a name.
_KINDS = ("inline", "file", "s3", "dataset", "open")
#: Of fields that may have one of several types; pydantic names the type behind the field.
_TYPES = {("cache", "Cache"), ("cache", "bool")} | {
    ("columns", kind) for kind in ("list[str]", "dict[str,str]")
}


def path(location: tuple[int | str, ...]) -> str:
    """A pydantic error location as `input.requests[3].custom_id`."""
    text = ""
    for place, step in enumerate(location):
        if place == 1 and location[0] == "input" and step in _KINDS:
            continue  # pydantic names the kind of a message's input here
        if place and (location[place - 1], step) in _TYPES:
            continue
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".")


def unpacked(body: bytes, content_encoding: str | None, *, otherwise: str = _LARGE_INPUTS) -> bytes:
    """The body's JSON. Raises RejectedError if it is too large or not encoded as it says.

    `otherwise` says what to do with a larger one.
    """
    if content_encoding not in (None, "", "gzip"):
        raise RejectedError(
            [
                Reason(
                    "unsupported_media",
                    "content_encoding: only 'gzip' is supported.",
                    "content_encoding",
                )
            ],
            is_dead=True,
        )
    if content_encoding == "gzip":
        body = _inflate(body)
    if len(body) > MAX_BODY_BYTES:
        raise _too_large(
            f"The message has {len(body)} bytes; at most {MAX_BODY_BYTES} are allowed. {otherwise}"
        )
    return body


def checked(body: bytes, shape: type[M]) -> M:
    """The JSON as a value. Raises RejectedError that names every wrong field."""
    try:
        # Strict: in JSON, "5" and true are no integers. The decoder also refuses lone surrogates,
        # which no file or answer can hold.
        return shape.model_validate_json(body, strict=True)
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False)
    # Outside the handler, because the error quotes the body.
    if errors[0]["type"] == "json_invalid":
        text = f"The body is not JSON: {errors[0]['msg']}."
        raise RejectedError([Reason("schema_invalid", text)], is_dead=True)
    raise RejectedError(
        _reason(one["type"], one["loc"], one["msg"], one.get("ctx")) for one in errors
    )


def _reason(
    kind: str, location: tuple[int | str, ...], text: str, limits: dict[str, Any] | None
) -> Reason:
    param = path(location)[:_MAX_PATH]
    if kind == "union_tag_invalid":
        param, text = "input.kind", f"Input should be {(limits or {})['expected_tags']}"
    if kind == "union_tag_not_found":
        param, text = "input.kind", "Field required"
    if not param:
        return Reason("schema_invalid", f"The body: {text}.")
    return Reason("schema_invalid", f"{param}: {text}", param)


def _too_large(text: str) -> RejectedError:
    return RejectedError([Reason("too_large", text)], is_dead=True)


def _inflate(body: bytes) -> bytes:
    max_bytes = min(_MAX_INFLATED_BYTES, _MAX_RATIO * len(body))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            inflated = packed.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        text = "The body is not gzip."
        raise RejectedError(
            [Reason("unsupported_media", text, "content_encoding")], is_dead=True
        ) from error
    if len(inflated) > max_bytes:
        raise _too_large(
            f"The message inflates to more than {max_bytes} bytes, which is the smaller of "
            f"{_MAX_INFLATED_BYTES} and {_MAX_RATIO} times its compressed size."
        )
    return inflated

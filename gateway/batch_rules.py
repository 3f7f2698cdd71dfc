"""The body of `create_batch`, what it may hold, and its fingerprint. Pure."""

import hashlib
import json
from collections.abc import Collection

from pydantic import BaseModel, ConfigDict, Field

from gateway.fields import MetadataLimits, missing, require_one_of, require_small
from gateway.file_rules import ExpiresAfter
from shared.answer_cache import Cache
from shared.bus.messages import Deliver
from shared.dataset.dataset import Dataset
from shared.errors import InvalidInputError
from shared.integers import Priority
from shared.openai.endpoints import ENDPOINTS
from shared.table.output import Output

MAX_KEY_CHARACTERS = 255
_MAX_ID_CHARACTERS = 256

#: What `x-batchyard` says of each field.
ADDITIONS = {
    "cache": "Not in OpenAI's API. `true`: rows that a batch with `cache` of the same tenant was "
    "asked before, of the same model, with the same body, are not run again; their lines have "
    '`"cached": true`. `{"seconds": n}` says for how long answers of this batch may be given to '
    'later ones. In OpenAI\'s SDK: `extra_body={"cache": True}`.',
    "deliver": "Not in OpenAI's API. `{\"results\": true}` puts small results into the batch's "
    'last event on the bus. In OpenAI\'s SDK: `extra_body={"deliver": {"results": True}}`.',
    "dry_run": "Not in OpenAI's API. `true` checks the input as for a new batch, but creates "
    "nothing. The answer is a `batch.dry_run` with the rows, every bad line, the tokens counted by "
    "the model's own tokenizer, requests that are too long for the model, its lane, and when the "
    'batch would be done. In OpenAI\'s SDK: `extra_body={"dry_run": True}`.',
    "endpoint": "Where the operator allows mixed batches (BATCHYARD_MIXED_BATCHES), each line's "
    "`url` and `body.model` say where it runs, and `endpoint` is only echoed; `model` is null if "
    "the lines name several. Otherwise a line that differs fails the batch, as with OpenAI.",
    "idempotency_key": "Not in OpenAI's API; also accepted as the header Idempotency-Key. The same "
    "key with the same parameters returns the same batch; with other parameters it is a conflict.",
    "input": "Not in OpenAI's API. Instead of `input_file_id`: a table or a folder in S3, and a "
    "template that makes a request body of each row. The rendered requests are the batch's "
    '`input_file_id`. In OpenAI\'s SDK: `extra_body={"input": {"objects": "s3://…/*.parquet", '
    '"template": {…}}}`, with `input_file_id=omit`.',
    "model": "Not in OpenAI's API, and only for an open batch: the model of all its requests.",
    "open": "Not in OpenAI's API. `true` creates an open batch, which has no input: requests are "
    "added by `POST /v1/batches/{batch_id}/requests` and run as they come, until "
    "`POST /v1/batches/{batch_id}/close` or the end of the window. In OpenAI's SDK: "
    '`extra_body={"open": True, "model": "…"}`, with `input_file_id=omit`.',
    "output": "Not in OpenAI's API. A table of the results, besides the result files: its format, "
    "its columns, and where it is wanted. The batch's `table` says where it is, and its files. In "
    'OpenAI\'s SDK: `extra_body={"output": {"format": "parquet"}}`.',
    "priority": "Not in OpenAI's API. 0 to 9; batches with a higher priority run sooner.",
}


class CreateBatch(BaseModel):
    """The body of `create_batch`. `x-batchyard` describes the fields that OpenAI does not have."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    input_file_id: str | None = Field(default=None, max_length=_MAX_ID_CHARACTERS)
    input: Dataset | None = None
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None
    priority: Priority = 5
    idempotency_key: str | None = Field(default=None, max_length=MAX_KEY_CHARACTERS)
    dry_run: bool = False
    deliver: Deliver | None = None
    output: Output | None = None
    cache: Cache | bool | None = None
    open: bool = False
    model: str | None = Field(default=None, max_length=_MAX_ID_CHARACTERS)


def check(
    params: CreateBatch,
    header_key: str | None,
    *,
    windows: Collection[str],
    limits: MetadataLimits,
) -> None:
    """Raise InvalidInputError for values that this gateway does not take.

    `header_key` is the idempotency key of the call's header.
    """
    _check_input(params)
    require_one_of(params.endpoint, ENDPOINTS, "endpoint")
    require_one_of(params.completion_window, windows, "completion_window")
    require_small(params.metadata or {}, limits)
    if header_key and params.idempotency_key and header_key != params.idempotency_key:
        raise InvalidInputError(
            f"Invalid 'idempotency_key': '{params.idempotency_key}' differs from the header "
            f"Idempotency-Key '{header_key}'. Send one of them, or the same twice.",
            param="idempotency_key",
            code="invalid_value",
        )


def _check_input(params: CreateBatch) -> None:
    if params.open:
        if params.model is None:
            raise missing("model")
        for name in ("input_file_id", "input", "dry_run", "cache"):
            if getattr(params, name):
                raise InvalidInputError(
                    f"Invalid '{name}': an open batch is created without it, and gets its requests "
                    "afterwards.",
                    param=name,
                    code="invalid_value",
                )
        return
    if params.model is not None:
        raise InvalidInputError(
            "Invalid 'model': only an open batch has one; requests name their own.",
            param="model",
            code="invalid_value",
        )
    if params.input_file_id is None and params.input is None:
        raise missing("input_file_id")
    if params.input_file_id is not None and params.input is not None:
        raise InvalidInputError(
            "Invalid 'input': there is an 'input_file_id' as well. Send one of them.",
            param="input",
            code="invalid_value",
        )


def fingerprint(params: CreateBatch, output_seconds: int) -> str:
    """The same for the same parameters, however their JSON was written."""
    values = [
        params.endpoint,
        params.input_file_id,
        params.completion_window,
        params.metadata,
        params.priority,
        output_seconds,
        # Only if it is set, so that older fingerprints stay the same.
        *(["results"] if delivers(params) else []),
        *([params.input.model_dump(mode="json")] if params.input else []),
        *([params.output.model_dump(mode="json")] if params.output else []),
        *(["open", params.model] if params.open else []),
        *(["cache", _cached_for(params)] if params.cache else []),
    ]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _cached_for(params: CreateBatch) -> int | None:
    return params.cache.seconds if isinstance(params.cache, Cache) else None


def output_seconds(params: CreateBatch, *, default: int) -> int:
    """How long the result files are kept."""
    kept = params.output_expires_after
    return kept.seconds if kept else default


def delivers(params: CreateBatch) -> bool:
    """Whether the last event on the bus is to carry the results."""
    return params.deliver is not None and params.deliver.results

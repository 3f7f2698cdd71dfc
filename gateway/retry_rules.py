"""Which requests of an ended batch may be retried, and the errors if none can be. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.fields import MetadataLimits
from shared.errors import InvalidInputError
from shared.integers import Priority
from shared.ledger.manifests import RETRY_OF

RetryRows = Literal["all", "failed", "not_run"]


class RetryBatch(BaseModel):
    """The body of `retry_batch`. Fields that are left out are as in the batch that is retried."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rows: RetryRows = Field(
        default="all",
        description="`failed`: requests with an error response. `not_run`: requests that expired "
        "or were cancelled before they ran, or whose model could not be started.",
    )
    completion_window: str | None = None
    metadata: dict[str, str] | None = None
    priority: Priority | None = None
    idempotency_key: str | None = Field(
        default=None,
        max_length=255,
        description="Another key makes another batch of the same requests.",
    )


def fingerprint(params: RetryBatch) -> str:
    """The same for the same parameters, however their JSON was written."""
    text = json.dumps(params.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def linked_metadata(
    given: Mapping[str, str] | None,
    before: Mapping[str, str],
    batch_id: str,
    limits: MetadataLimits,
) -> dict[str, str]:
    """The new batch's metadata: what the call gives, else what the batch had, and the link to it.

    Raises InvalidInputError if the metadata is full.
    """
    kept = before if given is None else given
    metadata = {**kept, RETRY_OF: batch_id}
    # The link alone is always allowed.
    if kept and len(metadata) > limits.pairs:
        raise InvalidInputError(
            f"Invalid 'metadata': too many properties. '{RETRY_OF}' is added to them, so give at "
            f"most {max(0, limits.pairs - 1)} others.",
            param="metadata",
            code="object_above_max_properties",
        )
    return metadata


def nothing_to_retry(batch_id: str, why: str) -> InvalidInputError:
    """The error for a batch without requests to run again."""
    return InvalidInputError(
        f"There is nothing to retry in batch '{batch_id}': {why}.",
        param="batch_id",
        code="nothing_to_retry",
    )


def file_gone(batch_id: str, kind: str, file_id: str) -> InvalidInputError:
    """The error for a batch whose `kind` of file is needed and does not exist any more."""
    return InvalidInputError(
        f"Cannot retry batch '{batch_id}': its {kind} file {file_id} was deleted, changed or has "
        "expired. Create a new batch from your own copy of the requests.",
        param="batch_id",
        code=f"{kind}_file_gone",
    )

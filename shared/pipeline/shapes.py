"""Pipelines as the HTTP API and their last events show them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.lifecycle import Status
from shared.openai.shapes import Batch, BatchCost, BatchTable, RequestCounts, Usage
from shared.pipeline.declaration import Declaration, Kind

PipelineStatus = Literal["in_progress", "cancelling", "completed", "failed", "expired", "cancelled"]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class PipelineStage(_Shape):
    """One stage of a pipeline, and what has become of its rows."""

    number: int = Field(description="From 0, as in `stages` of the declaration.")
    kind: Kind
    failed: int = Field(description="Rows that ended here for a reason.")
    dropped: int = Field(
        description="Rows that ended here because the filter does not want them, or because there "
        "was an equal one before."
    )
    batch_id: str | None = Field(default=None, description="Of a `call`: the batch with its rows.")
    model: str | None = None
    endpoint: str | None = None
    status: Status | None = Field(default=None, description="Of a `call`: that of its batch.")
    request_counts: RequestCounts | None = None
    cached: int | None = Field(
        default=None,
        description="Of a `call`: rows that were given an answer of before.",
    )
    output_file_id: str | None = None
    error_file_id: str | None = None


class PipelineError(_Shape):
    """Why a pipeline failed."""

    code: str
    message: str


class Pipeline(_Shape):
    """A pipeline; timestamps are Unix seconds. Not in OpenAI's API."""

    id: str
    object: Literal["pipeline"] = "pipeline"
    status: PipelineStatus
    created_at: int
    expires_at: int
    ended_at: int | None = None
    completion_window: str
    error: PipelineError | None = None
    rows_read: int = Field(description="Rows of the input that are on their way, or at their end.")
    rows: int = Field(description="Rows that have come through all stages.")
    request_counts: RequestCounts = Field(description="The sums over all calls so far.")
    usage: Usage
    cost: BatchCost | None = None
    output_file_id: str | None = Field(
        default=None,
        description="Once it has ended: a line of JSON for each row that came through, with its "
        "columns.",
    )
    error_file_id: str | None = Field(
        default=None,
        description="Once it has ended: a line of JSON for each row that failed, with its stage.",
    )
    table: BatchTable | None = Field(
        default=None, description="Once it has ended: the table that was asked for."
    )
    stages: list[PipelineStage]
    metadata: dict[str, str] | None = None


def to_shape(
    pipeline_id: str,
    fields: Mapping[str, str],
    declaration: Declaration,
    batches: Mapping[int, Batch],
    batch_ids: Mapping[int, str],
) -> Pipeline:
    """The pipeline of this record; `batches` are those of its calls that there are, by stage."""
    counts: dict[str, dict[str, int]] = json.loads(fields.get("counts", "{}"))
    stages = [
        _stage(number, stage.kind, counts.get(str(number), {}), batches, batch_ids)
        for number, stage in enumerate(declaration.stages)
    ]
    found = list(batches.values())
    error = None
    # What failed it came too late for one that is completed.
    if "error_code" in fields and _status(fields) != "completed":
        error = PipelineError(code=fields["error_code"], message=fields["error"])
    return Pipeline(
        id=pipeline_id,
        status=_status(fields),
        created_at=int(fields["created_at"]),
        expires_at=int(fields["expires_at"]),
        ended_at=int(fields["ended_at"]) if "ended_at" in fields else None,
        completion_window=declaration.completion_window,
        error=error,
        rows_read=int(fields.get("read", 0)),
        rows=int(fields.get("rows", 0)),
        request_counts=_request_counts(found),
        usage=_usage(found),
        cost=_cost(found),
        output_file_id=fields.get("output_file_id") or None,
        error_file_id=fields.get("error_file_id") or None,
        table=_table(fields),
        stages=stages,
        metadata=declaration.metadata,
    )


def _table(fields: Mapping[str, str]) -> BatchTable | None:
    return BatchTable.model_validate_json(fields["table"]) if "table" in fields else None


def _status(fields: Mapping[str, str]) -> PipelineStatus:
    if "ended_at" in fields:
        ended: PipelineStatus = fields["status"]  # type: ignore[assignment]  # the end says so
        return ended
    return "cancelling" if {"cancelling_at", "failing_at"} & fields.keys() else "in_progress"


def _stage(
    number: int,
    kind: Kind,
    count: Mapping[str, int],
    batches: Mapping[int, Batch],
    batch_ids: Mapping[int, str],
) -> PipelineStage:
    ends = {"failed": count.get("failed", 0), "dropped": count.get("dropped", 0)}
    batch = batches.get(number)
    if batch is None:
        return PipelineStage(number=number, kind=kind, batch_id=batch_ids.get(number), **ends)
    return PipelineStage(
        number=number,
        kind=kind,
        batch_id=batch.id,
        model=batch.model,
        endpoint=batch.endpoint,
        status=batch.status,
        request_counts=batch.request_counts,
        cached=batch.cached,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        **ends,
    )


def _request_counts(batches: Sequence[Batch]) -> RequestCounts:
    names = ("total", "completed", "failed")
    sums = {name: sum(getattr(one.request_counts, name) for one in batches) for name in names}
    return RequestCounts(**sums)


def _usage(batches: Sequence[Batch]) -> Usage:
    return Usage.model_validate(_summed([one.usage.model_dump() for one in batches]))


def _cost(batches: Sequence[Batch]) -> BatchCost | None:
    costs = [one.cost.model_dump(exclude_none=True) for one in batches if one.cost is not None]
    return BatchCost.model_validate(_summed(costs)) if costs else None


def _summed(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of numbers at the same places; what is no number is that of the last one."""
    total: dict[str, Any] = {}
    for one in values:
        for name, value in one.items():
            if isinstance(value, dict):
                total[name] = _summed([total.get(name, {}), value])
            elif isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
            else:
                total[name] = value
    return total

"""Pipelines: batches in stages. Creates, shows and cancels them; the dispatcher runs them."""

import hashlib
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request
from pydantic import Field

from gateway.auth import Tenant
from gateway.batch_rules import MAX_KEY_CHARACTERS
from gateway.bodies import read_bytes
from gateway.dependencies import Services, Use
from gateway.fields import parsed, require_one_of, require_small
from gateway.limits import reserve_batch
from gateway.pipeline_dry_run import SAMPLED_ROWS, PipelineDryRun, PipelineDryRuns
from gateway.route_docs import addition, json_body
from gateway.tokens import loaded, tokenizer_file
from shared import ids
from shared.answer_cache import cache_seconds
from shared.bus.messages import window_seconds
from shared.errors import ConflictError, InvalidInputError
from shared.ledger.pipelines import Closing, StoredPipeline, write_tokenizer
from shared.openai.shapes import CursorPage
from shared.pipeline.declaration import Declaration, Stage
from shared.pipeline.plan import check, planned
from shared.pipeline.shapes import Pipeline, to_shape
from shared.pipeline.table import rows_table
from shared.state import PipelineRecord
from shared.submission.accept import HTTP_KEY
from shared.submission.adapters import usable_models
from shared.submission.datasets import Datasets
from shared.submission.pipelines import (
    accept_pipeline,
    close_pipeline,
    stored_of,
    to_pipeline,
)

router = APIRouter()

_PAGE = 20
#: Redis holds the declaration beside the record.
_MAX_BYTES = 256 * 1024


class CreatePipeline(Declaration):
    """A pipeline as it is declared, or only tried."""

    dry_run: bool = Field(
        default=False,
        description="Create nothing, and say what the first call would ask of the first rows.",
    )


_ADDITION = addition(
    "An addition to OpenAI's API. SDK: client.post(path, cast_to=object, body={…})."
)


@router.post("/pipelines", openapi_extra=json_body(CreatePipeline) | _ADDITION)
async def create_pipeline(
    request: Request,
    tenant: Tenant,
    services: Use,
    idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY_CHARACTERS)] = None,
) -> Pipeline | PipelineDryRun:
    """Create a pipeline: stages, of which each gets the rows of the one before.

    Each `call` is an open batch that only the pipeline adds to. A declaration that names an unknown
    model or column is a 400 that names the stage and the field. With an idempotency key, repeating
    the call returns the same pipeline. With `dry_run` nothing is created; the answer says what the
    first call would ask of the first rows.
    """
    declaration = parsed(await read_bytes(request, _MAX_BYTES), CreatePipeline)
    settings = services.settings
    require_one_of(declaration.completion_window, settings.completion_windows, "completion_window")
    require_small(declaration.metadata or {}, settings.metadata_limits)
    columns = check(declaration, await usable_models(services.state, services.catalog, tenant))
    if declaration.dry_run:
        request.state.dry_run = True
        return await _tried(services, tenant, declaration, columns)
    message_id = HTTP_KEY + (idempotency_key or request.state.request_id)
    stored = await _stored(services, tenant, declaration, message_id, columns)
    request.state.made = stored.id
    for call in planned(declaration).calls:
        batch_id = ids.batch_id(tenant, ids.stage_message_id(stored.id, call.stage))
        await reserve_batch(request, services, tenant, batch_id, call.call.endpoint)
    await accept_pipeline(services.state, services.storage, services.catalog, stored)
    return await _shown(services, await services.state.pipelines.get(tenant, stored.id))


@router.get("/pipelines", openapi_extra=_ADDITION)
async def list_pipelines(
    tenant: Tenant,
    services: Use,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = _PAGE,
) -> CursorPage[Pipeline]:
    """Your pipelines, newest first."""
    found, has_more = await services.state.pipelines.page(tenant, after=after, limit=limit)
    shown = [await _shown(services, record) for record in found]
    return CursorPage.of(shown, has_more=has_more)


@router.get("/pipelines/{pipeline_id}", openapi_extra=_ADDITION)
async def retrieve_pipeline(pipeline_id: str, tenant: Tenant, services: Use) -> Pipeline:
    """One pipeline as it is now, with each of its stages."""
    return await _shown(services, await services.state.pipelines.get(tenant, pipeline_id))


@router.post("/pipelines/{pipeline_id}/cancel", openapi_extra=_ADDITION)
async def cancel_pipeline(pipeline_id: str, tenant: Tenant, services: Use) -> Pipeline:
    """Cancel a pipeline: all its batches. Rows that came through by then are kept.

    Repeating the call changes nothing.
    """
    record = await services.state.pipelines.get(tenant, pipeline_id)
    if record.has_ended and record.fields["status"] != "cancelled":
        status = record.fields["status"]
        raise ConflictError(f"Cannot cancel a pipeline with status '{status}'.")
    if not record.has_ended:
        pipeline, closing = to_pipeline(stored_of(record)), Closing(int(time.time()))
        await close_pipeline(services.state, services.storage, pipeline, closing)
    return await _shown(services, await services.state.pipelines.get(tenant, pipeline_id))


async def _stored(
    services: Services,
    tenant: str,
    declaration: Declaration,
    message_id: str,
    columns: Sequence[str],
) -> StoredPipeline:
    """The pipeline to create. Raises InvalidInputError for an input that cannot be read."""
    places = services.settings.table_places.of(tenant)
    output = rows_table(declaration, columns, places)
    datasets = Datasets(services.state, services.storage, services.settings.places)
    pinned = await datasets.pinned(tenant, declaration.input.dataset())
    joined = {
        number: await _joined(datasets, tenant, number, stage)
        for number, stage in enumerate(declaration.stages)
        if stage.table is not None
    }
    pipeline_id = ids.pipeline_id(tenant, message_id)
    text = declaration.model_dump_json(by_alias=True, exclude_unset=True, exclude={"dry_run"})
    body = text.encode()
    now = int(time.time())
    return StoredPipeline(
        id=pipeline_id,
        tenant=tenant,
        fingerprint=hashlib.sha256(body).hexdigest(),
        created_at=now,
        expires_at=now + window_seconds(declaration.completion_window),
        declaration=msgspec.Raw(body),
        pinned=msgspec.Raw(msgspec.json.encode(pinned)),
        joined=joined,
        tokenizers=await _tokenizers(services, pipeline_id, declaration),
        output_seconds=services.settings.output_seconds,
        cache_seconds={
            call.stage: cache_seconds(call.call.cache, most=services.settings.cache_seconds)
            for call in planned(declaration).calls
            if call.call.cache
        },
        output=output,
    )


async def _tried(
    services: Services, tenant: str, declaration: Declaration, columns: Sequence[str]
) -> PipelineDryRun:
    """What would become of the first rows. Raises InvalidInputError."""
    rows_table(declaration, columns, services.settings.table_places.of(tenant))
    datasets = Datasets(services.state, services.storage, services.settings.places)
    for number, stage in enumerate(declaration.stages):
        if stage.table is not None:
            await _joined(datasets, tenant, number, stage)
    most = min(declaration.input.limit or SAMPLED_ROWS, SAMPLED_ROWS)
    first = declaration.input.model_copy(update={"limit": most})
    pinned = await datasets.pinned(tenant, first.dataset())
    tokenizers = await _tokenizer_files(services, declaration)
    runs = PipelineDryRuns(services.storage, services.dry_runs)
    return await runs.run(tenant, declaration, pinned, columns, tokenizers)


async def _tokenizers(
    services: Services, pipeline_id: str, declaration: Declaration
) -> dict[int, str]:
    """Keep the tokenizers that stages count with. Raises InvalidInputError that names the stage."""
    files = await _tokenizer_files(services, declaration)
    return {
        number: await write_tokenizer(services.storage, pipeline_id, body)
        for number, body in files.items()
    }


async def _tokenizer_files(services: Services, declaration: Declaration) -> dict[int, bytes]:
    """The tokenizers that stages count with. Raises InvalidInputError that names the stage."""
    found = {}
    for number, stage in enumerate(declaration.stages):
        if stage.split is None or stage.split.model is None:
            continue
        model = services.catalog.model(stage.split.model)
        body = await loaded(tokenizer_file, model)
        if body is None:
            param = f"stages[{number}].split.model"
            raise InvalidInputError(
                f"Invalid '{param}': the tokenizer of '{model.name}' is not on this gateway, or is "
                "of another kind. Leave the model out, and tokens are words or four bytes.",
                param=param,
                code="no_tokenizer",
            )
        found[number] = body
    return found


async def _joined(datasets: Datasets, tenant: str, number: int, stage: Stage) -> msgspec.Raw:
    """The objects of a table that a stage reads. Raises InvalidInputError that names the stage."""
    assert stage.table is not None  # noqa: S101  # only asked when there is one
    try:
        pinned = await datasets.pinned(tenant, stage.table.dataset())
    except InvalidInputError as error:
        place, param = f"stages[{number}].{stage.kind}", error.param or "input"
        raise InvalidInputError(
            str(error).replace("'input.", f"'{place}."),
            param=param.replace("input", place, 1),
            code=error.code,
        ) from error
    return msgspec.Raw(msgspec.json.encode(pinned))


async def _shown(services: Services, record: PipelineRecord) -> Pipeline:
    """The pipeline with what its batches say now."""
    declaration = Declaration.model_validate_json(record.fields["declaration"])
    batch_ids = {
        call.stage: ids.batch_id(record.tenant, ids.stage_message_id(record.id, call.stage))
        for call in planned(declaration).calls
    }
    found = {one.id: one for one in await services.state.batches.many(list(batch_ids.values()))}
    batches = {
        stage: found[batch_id].to_openai()
        for stage, batch_id in batch_ids.items()
        if batch_id in found
    }
    return to_shape(record.id, record.fields, declaration, batches, batch_ids)

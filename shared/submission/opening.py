"""Starts an open batch: its plan has no slices, and each addition brings some."""

import secrets
import time
from contextlib import suppress
from typing import Any

from shared import ids
from shared.catalog import Catalog
from shared.errors import InvalidInputError, InvalidTransitionError, NotFoundError
from shared.input.problems import shortened
from shared.lane_shares import LaneShares
from shared.ledger.commits import fail, failure_fields
from shared.ledger.copies import reserve_copies
from shared.ledger.plans import Plan, create_plan, replace_plan_pin
from shared.lifecycle import Event
from shared.state import BatchRecord, MovedError, State
from shared.storage import Storage
from shared.submission.adapters import usable_models

#: Its input has this ETag until there is one, so that nobody takes another object for it.
_NO_INPUT = "open"


def open_source(bucket: str, tenant: str, batch_id: str, model: str) -> dict[str, Any]:
    """What the manifest of an open batch says of its input, which is made when the batch ends."""
    file_id = ids.open_file_id(batch_id)
    return {
        "input_file_id": file_id,
        "bucket": bucket,
        "key": f"files/{tenant}/{file_id}",
        "etag": _NO_INPUT,
        "size": 0,
        "open_model": model,
    }


async def require_model(
    state: State, catalog: Catalog, tenant: str, endpoint: str, model: str
) -> None:
    """Raise InvalidInputError unless the tenant may use the model for the endpoint."""
    if endpoint not in (await usable_models(state, catalog, tenant)).get(model, ()):
        raise InvalidInputError(
            f"The model '{shortened(model)}' does not exist, or not for the endpoint {endpoint}.",
            param="model",
            code="model_not_found",
        )


async def start_open(state: State, storage: Storage, catalog: Catalog, record: BatchRecord) -> None:
    """Let the batch begin to take rows. Any process may repeat it.

    One whose model the catalog has lost since its creation fails: it would wait for ever.
    """
    model = record.fields["open_model"]
    shares = LaneShares(catalog)
    try:
        shares.share_of(model)
    except NotFoundError as error:
        refusal = failure_fields("model_not_found", str(error), param="model")
        with suppress(InvalidTransitionError):
            await fail(state, storage, record.id, Event.INPUT_REJECTED, refusal)
        return
    fields = {"model": model, "total": 0, **shares.fields()}
    await reserve_copies(state, record.id, expires_at=record.number("expires_at"), now=time.time())
    _, pin = await state.batches.pinned(record.id)
    wanted = Plan(fields=fields, slices=[], **pin._asdict())
    plan = await create_plan(storage, record.id, wanted)
    while True:
        started = {**plan.fields, "plan": secrets.token_hex(4)}
        try:
            await state.apply(record.id, Event.INPUT_ACCEPTED, started, pin=plan.pin)
        except InvalidTransitionError:
            # It has been cancelled, or somebody else was first and it is closing by now.
            return
        except MovedError:
            _, pin = await state.batches.pinned(record.id)
            plan = await replace_plan_pin(storage, record.id, plan, pin)
        else:
            return

"""The answers that batches with `cache` may be given again."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import Tenant
from gateway.dependencies import Use
from gateway.route_docs import addition

router = APIRouter()


class ClearedCache(BaseModel):
    """What `clear_cache` has forgotten."""

    model_config = ConfigDict(frozen=True)

    object: Literal["cache"] = "cache"
    deleted: Literal[True] = True
    rows: int = Field(description="Rows whose answers are not given again.")


@router.delete(
    "/cache",
    openapi_extra=addition(
        "An addition to OpenAI's API. SDK: client.delete(path, cast_to=object)."
    ),
)
async def clear_cache(tenant: Tenant, services: Use) -> ClearedCache:
    """Forget which rows were answered, so that batches with `cache` ask all of theirs again.

    The answers stay in the output files that have them. Batches that run keep what they were given
    when they began. Repeating the call changes nothing.
    """
    return ClearedCache(rows=await services.state.answers.clear(tenant))

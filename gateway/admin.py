"""What operators see of the whole fleet. A key needs the scope `operator`, of whatever tenant."""

from typing import Generic, Literal, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.auth import Tenant
from gateway.dependencies import Use
from gateway.route_docs import addition
from shared.fleet import EngineView, Fleet, LaneView, TenantView, read_fleet

T = TypeVar("T")
router = APIRouter(prefix="/admin")

_ADDITION = addition(
    "An addition to OpenAI's API, for operators. SDK: client.get(path, cast_to=object)."
)


class All(BaseModel, Generic[T]):
    """All of one kind; this listing has no pages."""

    object: Literal["list"] = "list"
    data: list[T]


@router.get("/fleet", openapi_extra=_ADDITION)
async def retrieve_fleet(_: Tenant, services: Use) -> Fleet:
    """The whole fleet now: batches by status, lanes, engines and tenants."""
    return await read_fleet(services.state, services.catalog)


@router.get("/lanes", openapi_extra=_ADDITION)
async def list_lanes(_: Tenant, services: Use) -> All[LaneView]:
    """Every lane, with its work by tenant and what it waits for."""
    return All(data=(await read_fleet(services.state, services.catalog)).lanes)


@router.get("/engines", openapi_extra=_ADDITION)
async def list_engines(_: Tenant, services: Use) -> All[EngineView]:
    """Every engine, with its state, its starts, and why it does not run."""
    return All(data=(await read_fleet(services.state, services.catalog)).engines)


@router.get("/tenants", openapi_extra=_ADDITION)
async def list_tenants(_: Tenant, services: Use) -> All[TenantView]:
    """Every tenant, with what it has in the fleet now."""
    return All(data=(await read_fleet(services.state, services.catalog)).tenants)

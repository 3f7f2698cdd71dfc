"""OpenAI's calls for costs and usage: a tenant sees its own, an operator those of all.

A batch counts on the day on which it ends. Days are those of UTC.
"""

import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request

from gateway.auth import Tenant
from gateway.dependencies import Services, Use
from gateway.organization_shapes import (
    CompletionsResult,
    CostResult,
    Days,
    EmbeddingsResult,
    Grouping,
    Page,
    asked_days,
    completions,
    costs,
    embeddings,
    page_of,
)
from shared.engines import EngineSeconds
from shared.errors import InvalidInputError
from shared.scopes import Scope
from shared.spent import Day

router = APIRouter(prefix="/organization")

_MAX_DAYS = 180
Start = Annotated[int, Query(ge=0, le=2**40, description="Unix seconds, inclusive.")]
End = Annotated[int | None, Query(ge=0, le=2**40, description="Unix seconds, exclusive.")]
Limit = Annotated[int, Query(ge=1, le=_MAX_DAYS, description="How many days.")]
# The SDKs write lists with brackets.
GroupBy = Annotated[list[Grouping], Query(alias="group_by[]", default_factory=list)]
Projects = Annotated[
    list[str],
    Query(alias="project_ids[]", default_factory=list, description="Only these tenants."),
]
Next = Annotated[str | None, Query(pattern=r"^\d{1,7}$", description="`next_page` of a page.")]


@router.get("/costs")
async def list_costs(
    request: Request,
    tenant: Tenant,
    services: Use,
    start_time: Start,
    *,
    end_time: End = None,
    limit: Limit = 7,
    group_by: GroupBy,
    project_ids: Projects,
    page: Next = None,
) -> Page[CostResult]:
    """What batches have cost by the day on which they ended, at the prices of their plans.

    `project_id` is the tenant, and `line_item` the model and pool. Operators also see the time in
    which engines started or idled, which is no tenant's.
    """
    days = asked_days(start_time, end_time, limit=limit, page=page, now=time.time())
    found = await _days(request, services, tenant, days, project_ids)
    prices = {name: pool.price_per_hour for name, pool in services.catalog.pools.items()}
    overheads: dict[int, Sequence[EngineSeconds]] = {}
    if _is_operator(request) and not project_ids:
        overheads = {
            number: await services.state.engines.seconds(number) for number in days.numbers
        }
    return page_of(
        days,
        found,
        lambda day: costs(
            day,
            overheads.get(day.number, ()),
            prices,
            services.catalog.currency,
            by=group_by,
        ),
    )


@router.get("/usage/completions")
async def usage_completions(
    request: Request,
    tenant: Tenant,
    services: Use,
    start_time: Start,
    *,
    end_time: End = None,
    limit: Limit = 7,
    group_by: GroupBy,
    project_ids: Projects,
    page: Next = None,
) -> Page[CompletionsResult]:
    """Requests and tokens of batches that generate, by the day on which they ended."""
    days = asked_days(start_time, end_time, limit=limit, page=page, now=time.time())
    found = await _days(request, services, tenant, days, project_ids)
    return page_of(days, found, lambda day: completions(day, by=group_by))


@router.get("/usage/embeddings")
async def usage_embeddings(
    request: Request,
    tenant: Tenant,
    services: Use,
    start_time: Start,
    *,
    end_time: End = None,
    limit: Limit = 7,
    group_by: GroupBy,
    project_ids: Projects,
    page: Next = None,
) -> Page[EmbeddingsResult]:
    """Requests and tokens of batches of embeddings, by the day on which they ended."""
    days = asked_days(start_time, end_time, limit=limit, page=page, now=time.time())
    found = await _days(request, services, tenant, days, project_ids)
    return page_of(days, found, lambda day: embeddings(day, by=group_by))


async def _days(
    request: Request, services: Services, tenant: str, days: Days, project_ids: Sequence[str]
) -> list[Day]:
    """The days, with what the caller may see of those that it asks for."""
    if _is_operator(request):
        found = await services.state.spending.days(days.numbers)
        return [_only(day, frozenset(project_ids)) for day in found] if project_ids else found
    if any(project != tenant for project in project_ids):
        raise InvalidInputError(
            f"`project_ids`: this key sees {tenant} alone. A key with the scope `operator` sees "
            "all tenants.",
            param="project_ids",
        )
    return await services.state.spending.days(days.numbers, tenant=tenant)


def _only(day: Day, tenants: frozenset[str]) -> Day:
    return day._replace(
        gpus=[use for use in day.gpus if use.tenant in tenants],
        models=[use for use in day.models if use.tenant in tenants],
    )


def _is_operator(request: Request) -> bool:
    return Scope.OPERATOR in request.state.scopes

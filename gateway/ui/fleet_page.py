"""What operators see of the whole fleet: lanes, engines, tenants and dead letters. No contents."""

import time
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from gateway.dependencies import Services, Use
from gateway.limits import limits_of
from gateway.ui.feed import Seen, View
from gateway.ui.live import live
from gateway.ui.pages import fragment, page, redirect
from gateway.ui.session import AnyForm, Visitor, require_csrf, visit
from shared.bus.dead_letters import DeadLetter
from shared.bus.letters import each, first, replay
from shared.bus.topology import DEAD_QUEUE
from shared.errors import NotFoundError, PermissionDeniedError, TransientError
from shared.fleet import Fleet, TenantView, read_fleet
from shared.retention import DAY_SECONDS
from shared.scopes import Scope
from shared.tenants import TenantSettings

router = APIRouter()

#: Nobody announces what happens in the fleet, so it is read this often while a page shows it.
_STALE_SECONDS = 2.0
_MAX_LETTERS = 100


class FleetView(NamedTuple):
    """The fleet, and what the page shows besides."""

    fleet: Fleet
    #: GPU seconds of today (UTC) by lane.
    gpu_seconds: Mapping[str, float]
    #: None if the broker does not answer.
    dead_letters: int | None


class TenantRow(NamedTuple):
    """A tenant, and what it may have."""

    tenant: TenantView
    limits: TenantSettings


async def _operator(request: Request, services: Use) -> Visitor:
    return await visit(request, services, Scope.OPERATOR)


Operator = Annotated[Visitor, Depends(_operator)]


@router.get("/fleet")
async def show_fleet_page(request: Request, visitor: Operator, services: Use) -> Response:
    """Lanes with their queues, engines with their states, and who waits for what."""
    return page(request, "fleet.html", visitor, view=await _fleet_view(services))


@router.get("/fleet/live")
async def watch_fleet_page(visitor: Operator, services: Use) -> Response:
    """The same again whenever it has changed."""

    async def look() -> Seen:
        return Seen(fragment("_fleet_live.html", view=await _fleet_view(services)))

    return await live(services, visitor.tenant, View("fleet", "", look, _STALE_SECONDS))


@router.get("/fleet/dead-letters")
async def show_dead_letters_page(request: Request, visitor: Operator, services: Use) -> Response:
    """The oldest messages that could not be taken, with the reasons and without their bodies."""
    letters: list[DeadLetter] = await first(services.bus, _MAX_LETTERS)
    may_replay = Scope.ADMIN in visitor.scopes
    return page(request, "dead_letters.html", visitor, letters=letters, may_replay=may_replay)


@router.post("/fleet/dead-letters")
async def replay_dead_letter(
    request: Request, visitor: Operator, services: Use, form: AnyForm
) -> Response:
    """Publish one letter again as it was sent. Needs the scope `admin` besides."""
    require_csrf(visitor, form)
    if Scope.ADMIN not in visitor.scopes:
        raise PermissionDeniedError("A key that replays messages needs the scope admin, too.")
    letter_id = request.state.made = form.get("id", "")
    if not await each(services.bus, [letter_id], replay):
        raise NotFoundError("This dead letter is not there any more.")
    return redirect("/ui/fleet/dead-letters")


@router.get("/tenants")
async def show_tenants_page(request: Request, visitor: Operator, services: Use) -> Response:
    """What each tenant uses of its quotas."""
    return page(request, "tenants.html", visitor, rows=await _tenants(services))


@router.get("/tenants/live")
async def watch_tenants_page(visitor: Operator, services: Use) -> Response:
    """The same again whenever it has changed."""

    async def look() -> Seen:
        return Seen(fragment("_tenants_live.html", rows=await _tenants(services)))

    return await live(services, visitor.tenant, View("tenants", "", look, _STALE_SECONDS))


async def _fleet_view(services: Services) -> FleetView:
    fleet = await read_fleet(services.state, services.catalog)
    spent = await services.state.engines.seconds(int(time.time()) // DAY_SECONDS)
    try:
        letters = await services.bus.depth(DEAD_QUEUE)
    except TransientError:
        letters = None
    return FleetView(fleet, {one.lane: one.total / 1e6 for one in spent}, letters)


async def _tenants(services: Services) -> list[TenantRow]:
    fleet = await read_fleet(services.state, services.catalog)
    rows = [TenantRow(one, await limits_of(services, one.id)) for one in fleet.tenants]
    return sorted(rows, key=lambda row: (-row.tenant.rows_left, row.tenant.id))

"""All routes of the page."""

from fastapi import APIRouter
from starlette.responses import Response

from gateway.ui import (
    batch_acts,
    batch_list,
    batch_page,
    batch_results,
    event_list,
    fleet_page,
    new_batch,
    pages,
    sign_in,
)
from gateway.ui.pages import redirect
from gateway.ui.session import HOME

router = APIRouter()


@router.get("/")
@router.get("/ui")
@router.get("/ui/")
async def show_home() -> Response:
    """Whoever opens the gateway in a browser finds the page."""
    return redirect(HOME)


for module in (
    pages,
    sign_in,
    batch_list,
    batch_page,
    batch_acts,
    batch_results,
    new_batch,
    event_list,
    fleet_page,
):
    router.include_router(module.router, prefix="/ui")

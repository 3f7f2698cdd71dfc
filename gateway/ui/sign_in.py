"""Signs people in and out."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.auth import let_in, masked
from gateway.dependencies import Use
from gateway.limits import call_rates
from gateway.ui.pages import page, redirect
from gateway.ui.session import (
    HOME,
    AnyForm,
    forget,
    remember,
    require_csrf,
    token_of,
    visit,
)
from shared.errors import AuthenticationError, PermissionDeniedError
from shared.scopes import Scope
from shared.state import Admission, Expired

router = APIRouter()


@router.get("/sign-in")
async def show_sign_in(request: Request, next: str = "") -> Response:  # noqa: A002  # the name in the URL
    """The form that asks for a key."""
    return page(request, "sign_in.html", None, error=None, next=_own_path(next))


@router.post("/sign-in")
async def sign_in(request: Request, services: Use, form: AnyForm) -> Response:
    """Begin a session if the key is valid and may read."""
    key, way = form.get("key", "").strip(), _own_path(form.get("next", ""))
    rates = call_rates("/v1/models", services.settings)
    try:
        admission = await services.state.keys.admit(key, rates) if key else None
        needed = _first_scope(admission)
        let_in(request, admission, needed, shown=masked(key))
    except (AuthenticationError, PermissionDeniedError) as error:
        return page(request, "sign_in.html", None, status=401, error=str(error), next=way)
    seconds = services.settings.session_seconds
    # A new token each time, so that nobody can have prepared it.
    token = await services.state.sessions.open(key, seconds=seconds)
    response = redirect(way if needed is Scope.READ or way != HOME else "/ui/fleet")
    remember(response, request, token, seconds=seconds)
    return response


@router.post("/sign-out")
async def sign_out(request: Request, services: Use, form: AnyForm) -> Response:
    """End the session, whatever its key may do."""
    require_csrf(await visit(request, services, None), form)
    if token := token_of(request):
        await services.state.sessions.close(token)
    response = redirect("/ui/sign-in")
    forget(response)
    return response


def _first_scope(admission: Admission | Expired | None) -> Scope:
    """What somebody with the key can see here: the fleet, with a key that is for nothing else."""
    scopes = admission.scopes if isinstance(admission, Admission) else ()
    return Scope.OPERATOR if Scope.OPERATOR in scopes and Scope.READ not in scopes else Scope.READ


def _own_path(text: str) -> str:
    """Where to go after the sign-in: a path of this page, whatever a link says."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return HOME
    is_own = not parts.scheme and not parts.netloc and text.startswith("/ui/") and "\\" not in text
    return text if is_own else HOME

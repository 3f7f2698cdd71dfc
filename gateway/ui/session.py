"""Who looks at the page: signs in with an API key, and is known by a cookie afterwards.

The cookie holds a random token and never the key. Each call is admitted by the session's key, so a
revoked key ends its sessions, and scopes and limits are those of the key.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request
from starlette.responses import Response

from gateway.auth import let_in, require_own
from gateway.dependencies import Services, Use
from gateway.limits import call_rates
from gateway.scopes import needed_scope
from shared.errors import AuthenticationError, InvalidInputError, PermissionDeniedError
from shared.scopes import Scope
from shared.state import BatchRecord

HOME = "/ui/batches"
_COOKIE = "batchyard-session"
#: Browsers refuse a cookie of this name unless it came over HTTPS for this host alone.
_SECURE_COOKIE = f"__Host-{_COOKIE}"
_MAX_FORM_BYTES = 64 * 1024


class SignedOutError(AuthenticationError):
    """Nobody is signed in, or the session has ended."""


class Visitor(NamedTuple):
    """Somebody who is signed in."""

    tenant: str
    key_id: str
    scopes: tuple[Scope, ...]
    #: What each form must send along; no other site knows it.
    csrf: str


async def _visitor(request: Request, services: Use) -> Visitor:
    return await visit(request, services, needed_scope(request.method, request.scope["path"]))


async def visit(request: Request, services: Services, needed: Scope | None) -> Visitor:
    """Admit the call by the key of its session, which must have the scope if one is needed.

    Raises SignedOutError, and what the API would raise for the key.
    """
    token = token_of(request)
    digest = await services.state.sessions.key_digest(token) if token else None
    if not token or digest is None:
        raise SignedOutError("Sign in with an API key.")
    rates = call_rates(_of_api(request.scope["path"]), services.settings)
    admission = await services.state.keys.admit_digest(digest, rates)
    try:
        admitted = let_in(request, admission, needed, shown="that you signed in with")
    except AuthenticationError as error:
        raise SignedOutError(str(error), code=error.code) from error
    return Visitor(admitted.tenant, admitted.key_id, admitted.scopes, csrf_of(token))


SignedIn = Annotated[Visitor, Depends(_visitor)]


async def _visited_batch(visitor: SignedIn, services: Use, batch_id: str) -> BatchRecord:
    records = await services.state.batches.many([batch_id])
    return require_own(records[0] if records else None, visitor.tenant, batch_id)


VisitedBatch = Annotated[BatchRecord, Depends(_visited_batch)]


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form from this page, and of no other site's."""
    require_same_site(request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise InvalidInputError("The form is too large.")
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))


async def _checked_form(request: Request, visitor: SignedIn) -> dict[str, str]:
    fields = await _form(request)
    require_csrf(visitor, fields)
    return fields


AnyForm = Annotated[dict[str, str], Depends(_form)]
#: The form of somebody who is signed in.
CheckedForm = Annotated[dict[str, str], Depends(_checked_form)]


def require_csrf(visitor: Visitor, fields: Mapping[str, str]) -> None:
    """Raise PermissionDeniedError unless the form is one that this page gave to the visitor."""
    if not hmac.compare_digest(fields.get("csrf", "").encode(), visitor.csrf.encode()):
        raise PermissionDeniedError(
            "This form is not of your session. Go back, reload the page and send it again."
        )


def require_same_site(request: Request) -> None:
    """Raise PermissionDeniedError for a form that another site has sent."""
    headers = request.headers
    origin = headers.get("origin")
    hosts = {headers.get("host"), headers.get("x-forwarded-host")}
    fetched = headers.get("sec-fetch-site")
    is_foreign = (
        fetched not in {"same-origin", "none"}
        if fetched is not None
        else origin is not None and _host_of(origin) not in hosts
    )
    if is_foreign:
        raise PermissionDeniedError("Another site has sent this form. Open the page itself.")


def _host_of(origin: str) -> str:
    """Empty for what is no URL, such as `null`."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def token_of(request: Request) -> str | None:
    """The token in the call's cookie."""
    return request.cookies.get(_SECURE_COOKIE) or request.cookies.get(_COOKIE)


def csrf_of(token: str) -> str:
    """The secret of the session's forms: it tells nothing of the session's token."""
    return hmac.new(token.encode(), b"csrf", sha256).hexdigest()


def remember(response: Response, request: Request, token: str, *, seconds: int) -> None:
    """Give the browser the session's cookie."""
    secure = _is_https(request)
    response.set_cookie(
        _SECURE_COOKIE if secure else _COOKIE,
        token,
        max_age=seconds,
        httponly=True,
        samesite="lax",
        secure=secure,
    )


def forget(response: Response) -> None:
    """Take the cookie away."""
    response.delete_cookie(_COOKIE, httponly=True, samesite="lax")
    response.delete_cookie(_SECURE_COOKIE, httponly=True, samesite="lax", secure=True)


def _is_https(request: Request) -> bool:
    """Whether the browser speaks HTTPS; whoever lies about it only harms their own cookie."""
    origin = request.headers.get("origin", "")
    return (
        request.url.scheme == "https"
        or request.headers.get("x-forwarded-proto") == "https"
        or origin.startswith("https://")
    )


def _of_api(path: str) -> str:
    """The path of the API whose limits count for this one."""
    return "/v1" + path.removeprefix("/ui")

"""Errors as people see them on the page."""

from http import HTTPStatus
from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response

from gateway.ui.pages import page, redirect
from gateway.ui.session import SignedOutError, token_of

ROOT = "/ui"


def is_for_people(path: str) -> bool:
    """Whether errors of this path are shown as pages."""
    return path == ROOT or path.startswith(f"{ROOT}/")


def error_page(request: Request, error: Exception, status: int, message: str) -> Response:
    """The error as a page; the way to sign in for those who are not."""
    if isinstance(error, SignedOutError):
        return _to_sign_in(request)
    return page(
        request,
        "error.html",
        None,
        status=status,
        title=HTTPStatus(status).phrase,
        message=message,
        code=status,
        request_id=request.state.request_id,
        is_signed_in=token_of(request) is not None,
    )


def _to_sign_in(request: Request) -> Response:
    path = request.scope["path"]
    way = "/ui/sign-in"
    if request.method == "GET":
        query = request.scope["query_string"].decode("latin-1")
        way += "?next=" + quote(path + (f"?{query}" if query else ""), safe="")
    response = redirect(way)
    if "hx-request" in request.headers:
        # A part of a page cannot become the page to sign in: the whole page goes there.
        response.status_code = 200
        del response.headers["location"]
        response.headers["hx-redirect"] = "/ui/sign-in"
    return response

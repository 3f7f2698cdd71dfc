"""Makes HTML out of the templates, with the headers that every page has."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gateway.ui import words
from gateway.ui.session import Visitor
from shared.errors import NotFoundError

router = APIRouter()

_HERE = Path(__file__).parent
_STATIC = _HERE / "static"
#: Nothing from elsewhere, no inline script and no inline style.
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_A_YEAR = "public, max-age=31536000, immutable"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update({"asset": asset_url, "words": words})
    return made


def fragment(template: str, /, **values: Any) -> str:
    """A part of a page."""
    return _environment().get_template(template).render(**values)


def page(
    request: Request,
    template: str,
    visitor: Visitor | None,
    /,
    *,
    status: int = 200,
    **values: Any,
) -> Response:
    """A whole page, as the visitor sees it; None for nobody."""
    text = fragment(template, visitor=visitor, path=request.scope["path"], **values)
    return HTMLResponse(text, status, headers=dict(HEADERS))


def redirect(to: str) -> Response:
    """Send the browser on, with a GET."""
    return RedirectResponse(to, 303, headers=dict(HEADERS))


def asset_url(name: str) -> str:
    """The URL of a static file; another one for other bytes, so that browsers may keep it."""
    return f"/ui/static/{_digest(name)}/{name}"


@router.get("/static/{digest}/{name}")
async def static_file(digest: str, name: str) -> Response:
    """A stylesheet or script. Needs no key."""
    known = {path.name for path in _STATIC.iterdir()}
    if name not in known or digest != _digest(name):
        raise NotFoundError("There is no such file.")
    return Response(
        _bytes(name),
        media_type=_MEDIA_TYPES.get(Path(name).suffix, "text/plain"),
        headers={**HEADERS, "cache-control": _A_YEAR},
    )


@cache
def _digest(name: str) -> str:
    return hashlib.sha256(_bytes(name)).hexdigest()[:16]


@cache
def _bytes(name: str) -> bytes:
    return (_STATIC / name).read_bytes()

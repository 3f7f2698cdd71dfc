"""Reads the JSON bodies of calls."""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from gateway.fields import parsed
from shared.errors import TooLargeError

B = TypeVar("B", bound=BaseModel)

MAX_BODY_BYTES = 1024 * 1024


async def read_body(request: Request, shape: type[B]) -> B:
    """The call's JSON body. Raises InvalidInputError, and TooLargeError above MAX_BODY_BYTES."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError(
                f"The request body is too large. Send at most {MAX_BODY_BYTES} bytes."
            )
    return parsed(bytes(body), shape)


async def read_optional_body(request: Request, shape: type[B]) -> B:
    """As `read_body`; a call without a body counts as one with an empty object."""
    has_body = request.headers.get("content-length", "0") != "0" or (
        "transfer-encoding" in request.headers
    )
    return await read_body(request, shape) if has_body else parsed(b"{}", shape)

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
    return parsed(await read_bytes(request, MAX_BODY_BYTES), shape)


async def read_bytes(request: Request, most: int) -> bytes:
    """The call's body. Raises TooLargeError if it has more than `most` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise TooLargeError(f"The request body is too large. Send at most {most} bytes.")
    return bytes(body)


async def read_optional_body(request: Request, shape: type[B]) -> B:
    """As `read_body`; a call without a body counts as one with an empty object."""
    has_body = request.headers.get("content-length", "0") != "0" or (
        "transfer-encoding" in request.headers
    )
    return await read_body(request, shape) if has_body else parsed(b"{}", shape)

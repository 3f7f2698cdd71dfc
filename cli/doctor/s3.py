"""Looks at S3: whether our login may do what the fleet does, and create-only puts."""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime

import httpx

from cli.doctor import finding
from cli.doctor.finding import Finding, Level
from shared.errors import BatchyardError, NotFoundError
from shared.storage import PROBES, Storage

_PLACE = "s3"
_SECONDS = 5.0


async def look(storage: Storage, endpoint: str) -> AsyncIterator[Finding]:
    """Try it out, with a small object that is gone afterwards."""
    async for found in _clock(endpoint):
        yield found
        if found.level is Level.FAILED and "answer" in found.says:
            return
    try:
        has_bucket = await storage.has_bucket()
    except BatchyardError as error:
        yield Finding(_PLACE, Level.FAILED, f"it refuses the login: {error}", _logins(storage))
        return
    if not has_bucket:
        text = f"there is no bucket '{storage.bucket}'"
        do = "Make it, or correct BATCHYARD_S3_BUCKET. A gateway makes it at its start if it may."
        yield Finding(_PLACE, Level.FAILED, text, do)
        return
    async for found in _rights(storage):
        yield found


async def _clock(endpoint: str) -> AsyncIterator[Finding]:
    try:
        async with httpx.AsyncClient(timeout=_SECONDS) as http:
            answer = await http.get(endpoint)
    except httpx.HTTPError as error:
        text = f"it does not answer at {endpoint} ({type(error).__name__})"
        yield Finding(_PLACE, Level.FAILED, text, "Start it, or correct BATCHYARD_S3_ENDPOINT.")
        return
    if "date" in answer.headers:
        # The header has whole seconds.
        ahead = parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5 - time.time()
        yield finding.clock(_PLACE, ahead)


async def _rights(storage: Storage) -> AsyncIterator[Finding]:
    key = f"{PROBES}{secrets.token_hex(8)}"
    copy = f"{key}-copy"
    second: list[bool] = []

    async def create_again() -> None:
        second.append(await storage.create(key, b"2"))

    # In this order: each needs those before it.
    tries: Mapping[str, Callable[[], Awaitable[object]]] = {
        "s3:PutObject": lambda: storage.create(key, b"1"),
        "s3:PutObject with If-None-Match": create_again,
        "s3:GetObject": lambda: storage.get(key),
        "s3:ListBucket": lambda: storage.keys(key),
        "copying": lambda: storage.copy(key, copy),
        "s3:DeleteObject": lambda: storage.remove([key, copy]),
    }
    refused = []
    for right, attempt in tries.items():
        try:
            await attempt()
        except (BatchyardError, NotFoundError) as error:
            refused.append(right)
            yield Finding(_PLACE, Level.FAILED, f"{right} fails: {error}", _logins(storage))
    if second == [True]:
        yield Finding(
            _PLACE,
            Level.FAILED,
            "it ignores create-only puts (If-None-Match: *), so results could be overwritten",
            "Use a server that answers 412, such as Ceph RGW, MinIO or AWS.",
        )
    if not refused:
        text = f"the login may write, read, list, copy and delete in '{storage.bucket}'"
        yield Finding(_PLACE, Level.OK, text)
    if second == [False]:
        yield Finding(_PLACE, Level.OK, "create-only puts are honoured")


def _logins(storage: Storage) -> str:
    return (
        "Check BATCHYARD_S3_ACCESS_KEY, BATCHYARD_S3_SECRET_KEY and what that login may do with "
        f"the bucket '{storage.bucket}'."
    )

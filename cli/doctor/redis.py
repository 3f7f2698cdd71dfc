"""Looks at Redis: version, settings, memory and clock, and what waits in it."""

import time
from collections.abc import AsyncIterator

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from cli.doctor import finding
from cli.doctor.finding import Finding, Level
from shared.errors import TransientError
from shared.lifecycle import Status
from shared.state import State

_PLACE = "redis"
_SECONDS = 5.0
#: What takes less than a second while the fleet is well.
_LATE_SECONDS = 60.0


async def look(url: str) -> AsyncIterator[Finding]:
    """What Redis itself says."""
    redis: Redis = Redis.from_url(
        url, decode_responses=True, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS
    )
    try:
        async for found in _server(redis):
            yield found
    except (AuthenticationError, NoPermissionError):
        yield Finding(
            _PLACE,
            Level.FAILED,
            "it refuses the login",
            "Compare the user and password in BATCHYARD_REDIS_URL with `ACL LIST` at the server.",
        )
        return
    except (RedisError, OSError) as error:
        yield Finding(
            _PLACE,
            Level.FAILED,
            f"it does not answer ({type(error).__name__})",
            "Start it, or correct BATCHYARD_REDIS_URL.",
        )
        return
    finally:
        await redis.aclose()
    state = State(url, patience_seconds=_SECONDS)
    try:
        async for found in _fleet(state):
            yield found
    except TransientError as error:
        yield Finding(_PLACE, Level.FAILED, f"its scripts do not run: {error}", "See its own log.")
    finally:
        await state.close()


async def _server(redis: "Redis") -> AsyncIterator[Finding]:
    began = time.time()
    seconds, micros = await redis.time()
    middle = (began + time.time()) / 2
    info = await redis.info()
    yield finding.redis_version(str(info.get("redis_version", "")))
    yield finding.clock(_PLACE, seconds + micros / 1e6 - middle)
    try:
        settings = await redis.config_get("append*", "maxmemory-policy")
    except ResponseError:
        do = "Look at appendonly, appendfsync and maxmemory-policy yourself."
        yield Finding(_PLACE, Level.SKIPPED, "this login may not read its settings", do)
    else:
        for found in finding.redis_settings(settings):
            yield found
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(name, "ok") != "ok":
            do = "See its own log: its disk is full, or cannot be written."
            yield Finding(_PLACE, Level.FAILED, f"{name} is {info[name]}", do)
    limit = int(info.get("maxmemory") or info.get("total_system_memory") or 0)
    yield finding.room(_PLACE, "memory", int(info["used_memory"]), limit)


async def _fleet(state: State) -> AsyncIterator[Finding]:
    """What the fleet has written there."""
    if await state.restore.is_under_way():
        text = "a rebuild from S3 is under way, or was broken off"
        yield Finding(_PLACE, Level.WARNING, text, "Let `batchyard rebuild` end, or run it again.")
        return
    counts = await state.census.take()
    late = {
        f"{box} are not published": found.since
        for box, found in counts.outboxes.items()
        if found.since is not None
    }
    if (validating := counts.live.get(Status.VALIDATING)) and validating.since is not None:
        late["batches are not planned"] = validating.since
    for what, since in late.items():
        if counts.at - since > _LATE_SECONDS:
            yield Finding(
                "dispatcher",
                Level.FAILED,
                f"{what} since {counts.at - since:.0f} s",
                "Start a dispatcher and a gateway, or see their logs.",
            )
    if not late:
        yield Finding("dispatcher", Level.OK, "nothing waits to be planned or published")

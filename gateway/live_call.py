"""A live call on its way, over HTTP or by message: it is counted, and a replica answers it."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

import structlog

from gateway.dependencies import Services
from gateway.limit_errors import limit_headers, limit_reached, token_headers, too_many_calls
from gateway.live_client import Answer, BrokenAnswerError, Handed, LiveAdapter, ShutError
from gateway.live_request import LiveRequest
from gateway.open_streams import COUNTED_SECONDS
from gateway.own_adapters import adapter_of
from shared.doors import ADAPTER_MISSING, Door
from shared.errors import EngineDiedError
from shared.state import LiveCallLimits, Rate, Stream, TooManyCalls
from shared.submission.admission import Reached

log = structlog.get_logger()

#: An engine that dies before it has answered may have died of the call.
_MAX_DEATHS = 2
_OK = 200


async def begun(
    services: Services,
    tenant: str,
    asked: LiveRequest,
    note_headers: Callable[[dict[str, str]], None],
    *,
    requests: Rate | None = None,
) -> Stream:
    """Count the call; against the rate of requests as well if no key has. Raises LimitError.

    `note_headers` gets what the answer says of limits, also of one that is reached.
    """
    call = Stream(tenant, secrets.token_hex(8))
    given = services.settings
    limits = LiveCallLimits(given.max_live_calls, given.live_tokens_per_minute)
    outcome = await services.state.live_calls.begin(
        call, tokens=asked.tokens, limits=limits, seconds=COUNTED_SECONDS, requests=requests
    )
    if isinstance(outcome, TooManyCalls):
        raise limit_reached(tenant, Reached("live_calls", None, outcome.limit, outcome.used))
    is_of_requests = requests is not None and outcome.rate.name == requests.name
    note_headers(limit_headers(outcome) if is_of_requests else token_headers(outcome))
    if outcome.wait:
        kind = "requests" if is_of_requests else "tokens"
        raise too_many_calls(tenant, outcome, kind=kind)
    return call


async def handed_on(
    services: Services, asked: LiveRequest, call: Handed, stack: AsyncExitStack
) -> Answer:
    """The answer of the first replica that takes the call; `stack` holds it.

    Raises NoEngineError and EngineDiedError.
    """
    assert asked.model.live is not None  # noqa: S101  # it was looked at
    tried: set[str] = set()
    deaths = 0
    while True:
        door = await services.live_doors.choose(
            asked.model.lane, tried=tried, wait_seconds=asked.model.live.wait_seconds
        )
        try:
            async with AsyncExitStack() as attempt:
                attempt.enter_context(services.live_doors.calling(door))
                answer = await attempt.enter_async_context(services.live_client.call(door, call))
                if answer.status == ADAPTER_MISSING and call.adapter is not None:
                    answer = await _brought(services, door, call, attempt)
                stack.push_async_exit(attempt.pop_all())
                return answer
        except (ShutError, BrokenAnswerError) as error:
            log.warning(
                "live.next_door", replica=door.replica, what=type(error).__name__, why=str(error)
            )
            deaths += isinstance(error, BrokenAnswerError)
            if deaths >= _MAX_DEATHS:
                raise EngineDiedError("Engines died with this call in them.") from error
            tried.add(door.replica)
            services.live_doors.shut(door)


async def asked_of(
    services: Services, tenant: str, path: str, body: Mapping[str, Any]
) -> tuple[LiveRequest, LiveAdapter | None]:
    """What a call asks for, and the adapter of its tenant's that it names.

    Raises InvalidInputError and NotFoundError.
    """
    settings = await services.state.tenants.settings(tenant)
    adapter = await adapter_of(services, tenant, body.get("model"))
    is_own = adapter is not None
    asked = services.live_models.read(path, body, settings.may_use, tenant=tenant, is_own=is_own)
    return asked, adapter


async def _brought(services: Services, door: Door, call: Handed, attempt: AsyncExitStack) -> Answer:
    """The answer of a replica that is brought the adapter first, or what it says of the adapter."""
    assert call.adapter is not None  # noqa: S101  # whoever calls has looked
    file = call.adapter.file
    chunks = services.storage.stream(file.key, etag=file.etag, bucket=file.bucket)
    async with aclosing(chunks):
        said = await services.live_client.bring(door, call.tenant, call.adapter, chunks)
    if said.status != _OK:
        return said
    answer = await attempt.enter_async_context(services.live_client.call(door, call))
    if answer.status == ADAPTER_MISSING:
        raise ShutError("The replica has let go of the adapter again.")
    return answer


async def whole(answer: Answer) -> bytes:
    """The answer in one piece. Raises EngineDiedError."""
    try:
        return b"".join([chunk async for chunk in answer.chunks])
    except BrokenAnswerError as error:
        raise EngineDiedError("The engine died while it answered.") from error

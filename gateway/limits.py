"""What a tenant may ask of the gateway in a time, and how answers tell where it stands."""

from fastapi import Request

from gateway.dependencies import Services
from gateway.settings import GatewaySettings
from shared.errors import LimitError
from shared.limits import go_duration, queue_code, queue_text, rate_text
from shared.state import Known, Queue, Rate, Standing

_FILE_PATHS = ("/v1/files", "/v1/uploads")
_MICROSECONDS = 1_000_000
_NAMES = {
    "requests": "requests per min (RPM)",
    "files": "requests to files and uploads per min",
    "batches": "batches per hour",
}


def call_rates(path: str, settings: GatewaySettings) -> tuple[Rate, ...]:
    """The limits that a call to this path counts against."""
    every = Rate("requests", settings.requests_per_minute, 60)
    if not path.startswith(_FILE_PATHS):
        return (every,)
    return every, Rate("files", settings.file_requests_per_minute, 60)


def batch_rate(settings: GatewaySettings) -> Rate:
    """The limit that a new batch counts against."""
    return Rate("batches", settings.batches_per_hour, 3600)


def limit_headers(standing: Standing) -> dict[str, str]:
    """OpenAI's headers, for the limit that leaves the least room."""
    return {
        "x-ratelimit-limit-requests": str(standing.rate.calls),
        "x-ratelimit-remaining-requests": str(standing.left),
        "x-ratelimit-reset-requests": go_duration(standing.reset / _MICROSECONDS),
    }


def too_many_calls(tenant: str, standing: Standing) -> LimitError:
    """The error for a call that came too early."""
    wait_seconds = standing.wait / _MICROSECONDS
    rate = standing.rate
    text = rate_text(
        tenant=tenant, what=_NAMES[rate.name], limit=rate.calls, wait_seconds=wait_seconds
    )
    return LimitError(text, kind="requests", code="rate_limit_exceeded", wait_seconds=wait_seconds)


def queue_full(queue: Queue, *, tenant: str, model: str | None, limit: int) -> LimitError:
    """The error for a batch that could not run, because its tenant's running ones fill a queue."""
    text = queue_text(queue, tenant=tenant, model=model, limit=limit)
    return LimitError(text, kind=queue, code=queue_code(queue))


async def reserve_batch(
    request: Request, services: Services, tenant: str, batch_id: str, endpoint: str
) -> Known | None:
    """Count a new batch against its tenant's limits; one that is known already is not counted.

    Raises LimitError for too many in the time, and where none could run: the queue is full already.
    """
    settings = services.settings
    tokens = services.catalog.token_quotas(endpoint, default=settings.max_enqueued_tokens)
    outcome = await services.state.limits.reserve(
        tenant,
        batch_id,
        rate=batch_rate(settings),
        requests=settings.max_enqueued_requests,
        tokens=tokens,
    )
    match outcome:
        case "requests":
            limit = settings.max_enqueued_requests
            raise queue_full("requests", tenant=tenant, model=None, limit=limit)
        case "tokens":
            model, limit = next(iter(tokens.items()))
            raise queue_full("tokens", tenant=tenant, model=model, limit=limit)
        case Standing():
            request.state.limit_headers = limit_headers(outcome)
            raise too_many_calls(tenant, outcome)
        case _:
            return outcome

"""What a tenant may ask of the gateway in a time, and how answers tell where it stands."""

from fastapi import Request

from gateway.dependencies import Services
from gateway.settings import GatewaySettings
from shared.errors import LimitError
from shared.openai.limits import go_duration, queue_code
from shared.state import KnownBatch, Rate, RateStatus
from shared.submission.admission import FullQueue, refusal_text

_FILE_PATHS = ("/v1/files", "/v1/uploads")


def call_rates(path: str, settings: GatewaySettings) -> tuple[Rate, ...]:
    """The limits that a call to this path counts against."""
    every = Rate("requests", settings.requests_per_minute, 60)
    if not path.startswith(_FILE_PATHS):
        return (every,)
    return every, Rate("files", settings.file_requests_per_minute, 60)


def limit_headers(rate_status: RateStatus) -> dict[str, str]:
    """OpenAI's headers, for the limit that leaves the least room."""
    return {
        "x-ratelimit-limit-requests": str(rate_status.rate.calls),
        "x-ratelimit-remaining-requests": str(rate_status.left),
        "x-ratelimit-reset-requests": go_duration(rate_status.reset_seconds),
    }


def too_many_calls(tenant: str, rate_status: RateStatus) -> LimitError:
    """The error for a call that came too early."""
    return LimitError(
        refusal_text(tenant, rate_status),
        kind="requests",
        code="rate_limit_exceeded",
        wait_seconds=rate_status.wait_seconds,
    )


def queue_full(tenant: str, full: FullQueue) -> LimitError:
    """The error for a batch that could not run, because its tenant's running ones fill a queue."""
    return LimitError(refusal_text(tenant, full), kind=full.queue, code=queue_code(full.queue))


async def reserve_batch(
    request: Request, services: Services, tenant: str, batch_id: str, endpoint: str
) -> KnownBatch | None:
    """Count a new batch against its tenant's limits; one that is known already is not counted.

    Raises LimitError for too many in the time, and where none could run: the queue is full already.
    """
    outcome = await services.quota.reserve(services.state, tenant, batch_id, endpoint)
    match outcome:
        case FullQueue():
            raise queue_full(tenant, outcome)
        case RateStatus():
            request.state.limit_headers = limit_headers(outcome)
            raise too_many_calls(tenant, outcome)
        case _:
            return outcome

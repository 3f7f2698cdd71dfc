"""The limits of a tenant's calls, and the headers that say what is left of them."""

from fastapi import Request

from gateway.dependencies import Services
from gateway.settings import GatewaySettings
from shared.errors import LimitError
from shared.openai.limits import go_duration, queue_code
from shared.state import Known, Rate, Standing
from shared.submission.admission import FullQueue, refusal_text

_FILE_PATHS = ("/v1/files", "/v1/uploads")


def call_rates(path: str, settings: GatewaySettings) -> tuple[Rate, ...]:
    """The limits that a call to this path counts against."""
    every = Rate("requests", settings.requests_per_minute, 60)
    if not path.startswith(_FILE_PATHS):
        return (every,)
    return every, Rate("files", settings.file_requests_per_minute, 60)


def limit_headers(standing: Standing) -> dict[str, str]:
    """OpenAI's headers, for the limit that is closest."""
    return {
        "x-ratelimit-limit-requests": str(standing.rate.calls),
        "x-ratelimit-remaining-requests": str(standing.left),
        "x-ratelimit-reset-requests": go_duration(standing.reset_seconds),
    }


def too_many_calls(tenant: str, standing: Standing) -> LimitError:
    """The error for a call above the tenant's rate."""
    return LimitError(
        refusal_text(tenant, standing),
        kind="requests",
        code="rate_limit_exceeded",
        wait_seconds=standing.wait_seconds,
    )


def queue_full(tenant: str, full: FullQueue) -> LimitError:
    """The error for a batch that cannot run because the tenant's queue is full."""
    return LimitError(refusal_text(tenant, full), kind=full.queue, code=queue_code(full.queue))


async def reserve_batch(
    request: Request, services: Services, tenant: str, batch_id: str, endpoint: str
) -> Known | None:
    """Count a new batch against its tenant's limits. Returns what is known of a known batch.

    Raises LimitError if the tenant creates batches too fast, or if its queue is full.
    """
    outcome = await services.quota.reserve(services.state, tenant, batch_id, endpoint)
    match outcome:
        case FullQueue():
            raise queue_full(tenant, outcome)
        case Standing():
            request.state.limit_headers = limit_headers(outcome)
            raise too_many_calls(tenant, outcome)
        case _:
            return outcome

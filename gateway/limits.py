"""The limits of a tenant, and the calls that count against them."""

from fastapi import Request

from gateway.dependencies import Services
from gateway.limit_errors import limit_headers, limit_reached, no_room, too_many_calls
from shared.openai.endpoints import ENDPOINTS
from shared.settings import TenantDefaults
from shared.state import KnownBatch, Rate, RateStatus
from shared.submission.admission import Reached
from shared.tenants import TenantSettings

_FILE_PATHS = ("/v1/files", "/v1/uploads")


def call_rates(path: str, defaults: TenantDefaults) -> tuple[Rate, ...]:
    """The rates that a call to this path counts against, for a tenant that has none of its own."""
    every = Rate("requests", defaults.requests_per_minute, 60, "requests_per_minute")
    if path in ENDPOINTS:
        return (live_rate(defaults),)
    if not path.startswith(_FILE_PATHS):
        return (every,)
    files = defaults.file_requests_per_minute
    return every, Rate("files", files, 60, "file_requests_per_minute")


def live_rate(defaults: TenantDefaults) -> Rate:
    """The rate of live calls."""
    return Rate("live", defaults.live_requests_per_minute, 60, "live_requests_per_minute")


async def limits_of(services: Services, tenant: str) -> TenantSettings:
    """What holds for the tenant: no field but `models` is None."""
    return (await services.state.tenants.settings(tenant)).over(services.settings.tenant)


async def require_room(services: Services, tenant: str, size: int) -> int:
    """How many bytes the tenant may have stored.

    Raises LimitError if it would have more with so many new ones. Two calls at once may both pass,
    so the step that counts the bytes looks again.
    """
    limit = (await limits_of(services, tenant)).stored_bytes or 0
    used = await services.state.files.stored_bytes(tenant)
    if used + size > limit:
        raise no_room(tenant, limit=limit, used=used)
    return limit


async def reserve_batch(
    request: Request, services: Services, tenant: str, batch_id: str, endpoint: str
) -> KnownBatch | None:
    """Count a new batch against its tenant's limits. Returns what is known of a known batch.

    Raises LimitError if the tenant creates batches too fast, or if another limit is reached.
    """
    outcome = await services.quota.reserve(services.state, tenant, batch_id, endpoint)
    match outcome:
        case Reached():
            raise limit_reached(tenant, outcome)
        case RateStatus():
            request.state.limit_headers = limit_headers(outcome)
            raise too_many_calls(tenant, outcome)
        case _:
            return outcome

"""Finds the tenant of a call by its bearer key."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gateway.dependencies import Services, Use
from gateway.limits import call_rates, limit_headers, too_many_calls
from shared.errors import AuthenticationError, NotFoundError
from shared.state import BatchRecord

#: The ends of a shorter key would reveal too much of it.
_MIN_SHOWN = 16
_bearer = HTTPBearer(auto_error=False)
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _tenant(request: Request, services: Use, credentials: _Credentials) -> str:
    tenant, _ = await _admit(request, services, credentials)
    return tenant


async def _own_batch(
    request: Request, services: Use, credentials: _Credentials, batch_id: str
) -> BatchRecord:
    """Key, limits and batch in one round trip, because this is the most frequent call."""
    tenant, batch = await _admit(request, services, credentials, batch_id=batch_id)
    return require_own(batch, tenant, batch_id)


Tenant = Annotated[str, Depends(_tenant)]
OwnBatch = Annotated[BatchRecord, Depends(_own_batch)]


def require_own(batch: BatchRecord | None, tenant: str, batch_id: str) -> BatchRecord:
    """The batch. Raises NotFoundError if there is none, or if it is another tenant's."""
    if batch is None or batch.tenant != tenant:
        raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
    return batch


def masked(key: str) -> str:
    """Enough of a key to recognize it, and too little to use it."""
    return f"{key[:3]}***{key[-4:]}" if len(key) >= _MIN_SHOWN else "***"


async def _admit(
    request: Request,
    services: Services,
    credentials: HTTPAuthorizationCredentials | None,
    *,
    batch_id: str = "",
) -> tuple[str, BatchRecord | None]:
    """The caller's tenant, and the batch. Raises AuthenticationError and LimitError."""
    if credentials is None:
        raise AuthenticationError(
            "You didn't provide an API key. You need to provide your API key in an Authorization "
            "header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
        )
    key, rates = credentials.credentials, call_rates(request.scope["path"], services.settings)
    admission = await services.state.keys.admit(key, rates, batch_id=batch_id)
    if admission is None:
        raise AuthenticationError(
            f"Incorrect API key provided: {masked(key)}.", code="invalid_api_key"
        )
    tenant, standing, batch = admission
    request.state.tenant = tenant
    request.state.limit_headers = limit_headers(standing)
    if standing.wait:
        raise too_many_calls(tenant, standing)
    return tenant, batch

"""Finds the tenant of a call by its bearer key."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gateway.dependencies import Services, Use
from gateway.limit_errors import limit_headers, too_many_calls
from gateway.limits import call_rates
from gateway.scopes import needed_scope
from shared.errors import AuthenticationError, NotFoundError, PermissionDeniedError
from shared.scopes import Scope
from shared.state import Admission, BatchRecord, Expired

#: The ends of a shorter key would reveal too much of it.
_MIN_SHOWN = 16
_bearer = HTTPBearer(auto_error=False)
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def find_tenant(request: Request, services: Use, credentials: _Credentials) -> str:
    """The tenant of the call's key. Raises as `let_in` does."""
    return (await _admit(request, services, credentials)).tenant


async def find_batch(
    request: Request, services: Use, credentials: _Credentials, batch_id: str
) -> BatchRecord:
    """Key, limits and batch in one round trip, because this is the most frequent call."""
    admission = await _admit(request, services, credentials, batch_id=batch_id)
    # One that has left Redis is not found there.
    batch = admission.batch or next(iter(await services.state.batches.many([batch_id])), None)
    return require_own(batch, admission.tenant, batch_id)


async def tenant_of(request: Request) -> str:
    """As `find_tenant`, without FastAPI."""
    return await find_tenant(request, request.state.services, await _bearer(request))


async def own_batch_of(request: Request) -> BatchRecord:
    """As `find_batch`, without FastAPI."""
    batch_id = request.path_params["batch_id"]
    return await find_batch(request, request.state.services, await _bearer(request), batch_id)


Tenant = Annotated[str, Depends(find_tenant)]
OwnBatch = Annotated[BatchRecord, Depends(find_batch)]


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
) -> Admission:
    """The caller's tenant, and the batch.

    Raises AuthenticationError, PermissionDeniedError and LimitError.
    """
    if credentials is None:
        raise AuthenticationError(
            "You didn't provide an API key. You need to provide your API key in an Authorization "
            "header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
        )
    key, path = credentials.credentials, request.scope["path"]
    rates = call_rates(path, services.settings)
    admission = await services.state.keys.admit(key, rates, batch_id=batch_id)
    has = admission.scopes if isinstance(admission, Admission) else ()
    needed = needed_scope(request.method, path, has)
    return let_in(request, admission, needed, shown=masked(key))


def let_in(
    request: Request, admission: Admission | Expired | None, needed: Scope | None, *, shown: str
) -> Admission:
    """The admission, if the tenant may call now and the key is for such a call.

    Whatever the key is for if `needed` is None. `shown` stands for the key in errors. Raises
    AuthenticationError, PermissionDeniedError and LimitError.
    """
    if admission is None:
        raise AuthenticationError(f"Incorrect API key provided: {shown}.", code="invalid_api_key")
    if isinstance(admission, Expired):
        raise AuthenticationError(
            f"The API key {shown} expired at {_time_text(admission.at)}. Use another key, or ask "
            "your operator for one.",
            code="expired_api_key",
        )
    request.state.tenant = admission.tenant
    request.state.key_id = admission.key_id
    request.state.limit_headers = limit_headers(admission.rate_status)
    if admission.rate_status.wait:
        raise too_many_calls(admission.tenant, admission.rate_status)
    request.state.admitted = True
    request.state.scopes = admission.scopes
    if needed is not None and needed not in admission.scopes:
        raise PermissionDeniedError(
            "You have insufficient permissions for this operation. Missing scopes: "
            f"{needed}. The key {admission.key_id} has: {', '.join(admission.scopes)}. Use another "
            "key, or ask your operator to change this one.",
            code="missing_scope",
        )
    return admission


def _time_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

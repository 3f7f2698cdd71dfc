"""Whose call it is: a bearer key stands for a tenant."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gateway.dependencies import Use
from shared.errors import AuthenticationError

_bearer = HTTPBearer(auto_error=False)
#: Of shorter keys even the ends would tell too much.
_SHORTEST_SHOWN = 16


async def _tenant(
    request: Request,
    services: Use,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> str:
    if credentials is None:
        raise AuthenticationError(
            "You didn't provide an API key. You need to provide your API key in an Authorization "
            "header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
        )
    tenant = await services.state.keys.tenant(credentials.credentials)
    if tenant is None:
        raise AuthenticationError(
            f"Incorrect API key provided: {masked(credentials.credentials)}.",
            code="invalid_api_key",
        )
    request.state.tenant = tenant
    return tenant


Tenant = Annotated[str, Depends(_tenant)]


def masked(key: str) -> str:
    """Enough of a key to tell which one it was, and too little to use it."""
    return f"{key[:3]}***{key[-4:]}" if len(key) >= _SHORTEST_SHOWN else "***"

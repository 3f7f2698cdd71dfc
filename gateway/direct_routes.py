"""Routes so frequent that FastAPI's way to their endpoints would be most of what they cost.

They are declared, documented and checked as all others are. For each call, FastAPI finds again what
an endpoint depends on; here that is known from the start.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi.dependencies.utils import request_params_to_args
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.auth import find_batch, find_tenant, own_batch_of, tenant_of
from gateway.dependencies import find_services

Found = Callable[[Request], Awaitable[Any]]

#: How to find what endpoints depend on, without FastAPI.
_FOUND: Mapping[Callable[..., Any], Found] = {
    find_services: find_services,
    find_tenant: tenant_of,
    find_batch: own_batch_of,
}


class DirectRoute(APIRoute):
    """A route whose endpoint returns a Response, and depends on nothing but what is found here.

    FastAPI takes the calls that send headers that the endpoint declares, and those whose parameters
    are wrong, because it says so.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        needs = self.dependant.dependencies
        self._found = {
            one.name: _FOUND[one.call] for one in needs if one.call and one.call in _FOUND
        }
        wanted = self.dependant
        self._headers = [field.alias.replace("_", "-") for field in wanted.header_params]
        others = (*wanted.path_params, *wanted.cookie_params, *wanted.body_params)
        answers = inspect.signature(endpoint).return_annotation
        if answers is Response and len(self._found) == len(needs) and not others:
            self._whole_way, self.app = self.app, self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        values = self._parameters(request)
        if values is None:
            await self._whole_way(scope, receive, send)
            return
        for name, find in self._found.items():
            values[str(name)] = await find(request)
        response: Response = await self.endpoint(**values)
        await response(scope, receive, send)

    def _parameters(self, request: Request) -> dict[str, Any] | None:
        """The endpoint's own parameters that are not left out; None if FastAPI has to look."""
        wanted = self.dependant
        if any(name in request.headers for name in self._headers):
            return None
        values: dict[str, Any] = {}
        if wanted.query_params and request.scope["query_string"]:
            values, errors = request_params_to_args(wanted.query_params, request.query_params)
            if errors:
                return None
        if wanted.request_param_name is not None:
            values[wanted.request_param_name] = request
        return values

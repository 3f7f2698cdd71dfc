"""What schemathesis is told besides the document.

It deletes the oldest webhook endpoints that it made: a tenant may have ten at a time.
"""

import json
import os
from collections import deque
from typing import Any

import httpx
import schemathesis

_MADE: deque[str] = deque()
_KEPT = 5


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Called by schemathesis after each call."""
    if case.operation.method == "post" and case.operation.path == "/v1/webhook_endpoints":
        if response.status_code == httpx.codes.OK:
            _MADE.append(response.json()["id"])
        if len(_MADE) > _KEPT:
            key = os.environ["CONTRACT_KEY"]
            url = f"{response.request.url}/{_MADE.popleft()}"
            httpx.delete(url, headers={"authorization": f"Bearer {key}"})


@schemathesis.serializer("application/x-ndjson")
def as_it_is(context: Any, value: Any) -> bytes:
    """The lines of an addition."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()

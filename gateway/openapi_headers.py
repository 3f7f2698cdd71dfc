"""Tables of the OpenAPI document: the headers of answers. Pure."""

from collections.abc import Mapping

from gateway.route_docs import Json

_COUNT = {"type": "integer", "minimum": 0}
#: Each header that is documented, by its name.
HEADERS: Mapping[str, Json] = {
    "x-request-id": {
        "description": "The call's name in our log.",
        "required": True,
        "schema": {"type": "string", "pattern": "^req_[0-9a-f]{32}$"},
    },
    "openai-processing-ms": {
        "description": "How long the call took.",
        "required": True,
        "schema": _COUNT,
    },
    "openai-version": {"required": True, "schema": {"type": "string"}},
    "x-content-type-options": {"required": True, "schema": {"const": "nosniff"}},
    "x-ratelimit-limit-requests": {"schema": _COUNT},
    "x-ratelimit-remaining-requests": {"schema": _COUNT},
    "x-ratelimit-reset-requests": {
        "description": "A time such as `1s` or `6m0s`.",
        "schema": {"type": "string"},
    },
    "retry-after": {"description": "Seconds to wait before the next try.", "schema": _COUNT},
    "x-should-retry": {
        "description": "Whether the SDKs should try again, if that is not plain.",
        "schema": {"enum": ["true", "false"]},
    },
    "www-authenticate": {"required": True, "schema": {"type": "string"}},
    "content-disposition": {
        "description": "`attachment`, with the file's name.",
        "required": True,
        "schema": {"type": "string"},
    },
}
#: The headers of every answer, of every answer to a caller, and of some errors.
EVERYWHERE = ("x-request-id", "openai-processing-ms", "openai-version", "x-content-type-options")
OF_CALLERS = tuple(name for name in HEADERS if name.startswith("x-ratelimit-"))
OF_STATUS: Mapping[str, tuple[str, ...]] = {
    "401": ("www-authenticate",),
    "409": ("x-should-retry",),
    "429": ("retry-after", "x-should-retry"),
    "503": ("retry-after",),
}

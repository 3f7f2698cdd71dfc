"""What the OpenAPI document says of live calls. Pure."""

from copy import deepcopy
from typing import Any

from gateway.live_answers import EVENTS
from gateway.openapi_examples import SCHEMAS
from gateway.route_docs import FORM_MEDIA, JSON_MEDIA, Json
from gateway.row_schemas import live_schema
from shared.openai.endpoints import Endpoint

_FORM_SCHEMA: Json = {
    "type": "object",
    "description": "OpenAI's form: `file` in the place of `file_url`, and the other fields of the "
    "JSON body.",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string", "minLength": 1},
    },
    "required": ["file", "model"],
}
_QUESTION = "Where is my parcel?"
#: The answers of all endpoints: what they hold is the engine's.
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The engine's answer; with `stream`, its events.",
        "content": {
            JSON_MEDIA: {"schema": {"type": "object"}, "example": {"model": "support-chat"}},
            EVENTS: {"schema": {"type": "string"}},
        },
    },
    404: {"description": "The model does not exist, or takes no live calls."},
}


def operation_name(endpoint: Endpoint) -> str:
    """OpenAI's name of the operation, as a function would have it: `create_chat_completion`."""
    *words, last = endpoint.path.removeprefix("/v1/").strip("/").split("/")
    return "_".join(("create", *words, last.removesuffix("s")))


def live_docs(endpoint: Endpoint) -> Json:
    """The operation's body, which is that of a row."""
    schema = live_schema(endpoint, SCHEMAS + "{model}")
    media = {"schema": schema, "example": {"model": "support-chat", **_example(endpoint)}}
    content: Json = {JSON_MEDIA: media}
    if endpoint.prompt == "sound":
        content[FORM_MEDIA] = {"schema": deepcopy(_FORM_SCHEMA)}
    return {"requestBody": {"required": True, "content": content}}


def _example(endpoint: Endpoint) -> Json:
    match endpoint.prompt:
        case "messages":
            return {endpoint.content: [{"role": "user", "content": _QUESTION}]}
        case "pairs":
            one, other = endpoint.forms[0]
            return {one: _QUESTION, other: ["It is on its way.", "It rains."]}
        case "sound":
            return {endpoint.content: "data:audio/wav;base64,UklGRg=="}
        case _:
            return {endpoint.content: _QUESTION}

"""What the OpenAPI document says of live calls. Pure."""

from gateway.route_docs import JSON_MEDIA, Json
from shared.openai.endpoints import Endpoint


def operation_name(endpoint: Endpoint) -> str:
    """OpenAI's name of the operation, as a function would have it: `create_chat_completion`."""
    *words, last = endpoint.path.removeprefix("/v1/").split("/")
    return "_".join(("create", *words, last.removesuffix("s")))


def live_docs(endpoint: Endpoint) -> Json:
    """The operation's body, which is that of a row, and its answers."""
    row = endpoint.body.__name__.replace("Body", "Row")
    return {
        "requestBody": {
            "required": True,
            "content": {
                JSON_MEDIA: {
                    "schema": {"$ref": f"#/components/schemas/{row}/properties/body"},
                    "example": {"model": "support-chat", endpoint.content: "Where is my parcel?"},
                }
            },
        },
    }

"""What routes add to their OpenAPI operations, in one style for all. Pure.

What all operations have in common (errors, headers, examples, links) is added by `openapi.py`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Json = dict[str, Any]

JSON_MEDIA = "application/json"
FORM_MEDIA = "multipart/form-data"


def json_body(shape: type[BaseModel], *, is_required: bool = True) -> Json:
    """The operation takes a JSON body of this shape."""
    return _body(JSON_MEDIA, shape.model_json_schema(), is_required=is_required)


def form_body(properties: Mapping[str, Json], *, required: tuple[str, ...]) -> Json:
    """The operation takes a multipart form with these parts."""
    schema = {"type": "object", "required": list(required), "properties": dict(properties)}
    return _body(FORM_MEDIA, schema, is_required=True)


def addition(words: str | Mapping[str, str]) -> Json:
    """Mark the operation, or its named fields, as not in OpenAI's API; `words` describe them."""
    return {"x-batchyard": words if isinstance(words, str) else dict(words)}


def _body(media_type: str, schema: Json, *, is_required: bool) -> Json:
    return {"requestBody": {"required": is_required, "content": {media_type: {"schema": schema}}}}

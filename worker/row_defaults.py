"""What OpenAI lets a request leave out and vLLM demands. Pure."""

from collections.abc import Mapping
from typing import Any

_RESPONSES = "/v1/responses"


def with_defaults(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body with OpenAI's defaults where vLLM has none; what is given stays as it is.

    An `input_image` has the `detail` "auto". What the assistant has said in parts is a "message",
    whose other fields vLLM completes itself.
    """
    if path != _RESPONSES or not isinstance(items := body.get("input"), list):
        return body
    completed = [_item(one) for one in items]
    if all(one is other for one, other in zip(completed, items, strict=True)):
        return body
    return {**body, "input": completed}


def _item(item: Any) -> Any:
    if not isinstance(item, dict) or not isinstance(parts := item.get("content"), list):
        return item
    if item.get("role") == "assistant":
        return item if "type" in item else {**item, "type": "message"}
    if not any(map(_lacks_detail, parts)):
        return item
    completed = [{**one, "detail": "auto"} if _lacks_detail(one) else one for one in parts]
    return {**item, "content": completed}


def _lacks_detail(part: Any) -> bool:
    is_image: bool = isinstance(part, Mapping) and part.get("type") == "input_image"
    return is_image and "detail" not in part

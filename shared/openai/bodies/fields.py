"""The types of fields that several endpoints have, as vLLM reads them. Pure."""

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from shared.openai.bodies.refusals import Refusal, wrong

#: The roles whose messages may have no content.
_SILENT_ROLES = ("assistant", "function")


def _number(value: object) -> object:
    # The engine compares these fields before it reads them, so text is no number here.
    if value is not None and not isinstance(value, int | float):
        raise wrong("Input should be a valid integer")
    return value


def _message(value: object) -> object:
    if not isinstance(value, dict):
        raise wrong("Input should be an object with a role and a content")
    if "author" in value:
        # Harmony's own form, which the engine also takes.
        return value
    if not isinstance(value.get("role"), str):
        raise wrong("A message needs a role, and it should be a string")
    if "content" in value:
        _check_content(value["content"], value["role"])
    if value.get("name") is not None and not isinstance(value["name"], str):
        raise wrong("The name of a message should be a string")
    calls = value.get("tool_calls")
    if isinstance(calls, int | float | str) or (
        isinstance(calls, list) and not all(isinstance(call, dict) for call in calls)
    ):
        raise wrong("The tool_calls of a message should be an array of objects")
    return value


def _check_content(content: object, role: str) -> None:
    if content is None and role not in _SILENT_ROLES:
        raise wrong("The content of a message should be a string or an array, not null")
    if isinstance(content, bool | int | float) or (content and isinstance(content, dict)):
        raise wrong("The content of a message should be a string or an array")
    if not isinstance(content, list):
        return
    for part in content:
        if not isinstance(part, dict | str):
            raise wrong("A part of a message's content should be an object")
        if (
            isinstance(part, dict)
            and part.get("type") == "text"
            and part.keys() <= {"type", "text"}
            and not isinstance(part.get("text"), str)
        ):
            raise wrong("A part of the type 'text' needs a text, and it should be a string")


def _item(value: object) -> object:
    if not isinstance(value, dict):
        raise wrong("Input should be an object")
    return value


Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1)]
TopK = Annotated[int, Field(ge=-1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Repetition = Annotated[float, Field(gt=0, le=sys.float_info.max)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
Words = Annotated[str, Field(min_length=1)]
LogprobCount = Annotated[int, Field(ge=-1), BeforeValidator(_number)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=1024)]
Message = Annotated[Any, AfterValidator(_message)]
Item = Annotated[Any, AfterValidator(_item)]
Token = Annotated[int, Field(ge=0)]
Object = dict[str, Any]


def logit_bias_conflicts(bias: Mapping[str, float] | None) -> Iterator[Refusal]:
    """What is wrong with a bias by token: its keys should be numbers."""
    for token in bias or ():
        try:
            int(token)
        except ValueError:
            yield Refusal("logit_bias", "Every key should be the number of a token")
            return

"""What clients may put into fields, and OpenAI's words for what they may not. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from shared.bus.messages import path
from shared.errors import InvalidInputError

B = TypeVar("B", bound=BaseModel)

_SHOWN_CHARACTERS = 200
_NOT_JSON = (
    "We could not parse the JSON body of your request. The body has to be one JSON object, "
    "such as json.dumps() writes it."
)
_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer",
    "int_from_float": "an integer",
    "dict_type": "an object",
    "list_type": "an array",
    "model_type": "an object",
    "bool_type": "a boolean",
}


def parsed(body: bytes, shape: type[B], *, within: tuple[str, ...] = ()) -> B:
    """A JSON text as a value of `shape`. Raises InvalidInputError with OpenAI's message.

    `within` is the field that held the text, if it was not the whole body.
    """
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        raise complaint(error.errors(include_url=False), within=within) from None


def require_one_of(value: str, supported: Collection[str], param: str) -> None:
    """Raise InvalidInputError unless `value` is among those supported."""
    if value not in supported:
        raise _unsupported(value, ", ".join(f"'{word}'" for word in supported), param)


class MetadataLimits(NamedTuple):
    """How much metadata may hold; lengths in characters."""

    pairs: int
    key_characters: int
    value_characters: int


def require_small(metadata: Mapping[str, str], limits: MetadataLimits) -> None:
    """Raise InvalidInputError for metadata that holds too much."""
    if len(metadata) > limits.pairs:
        raise _many_properties("metadata", limits.pairs, len(metadata))
    for key, value in metadata.items():
        if len(key) > limits.key_characters:
            raise _long_key("metadata", key, limits.key_characters)
        if len(value) > limits.value_characters:
            raise _long_string(f"metadata.{key}", limits.value_characters, value)


def missing(param: str) -> InvalidInputError:
    """The error for a required field that is missing."""
    return InvalidInputError(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def complaint(  # noqa: C901, PLR0911  # one case per kind of error, as flat as a table
    errors: Sequence[Mapping[str, Any]], *, within: tuple[str, ...] = ()
) -> InvalidInputError:
    """The first of pydantic's errors in OpenAI's words; `within` is the path to the value."""
    first = errors[0]
    kind, value, limits = first["type"], first.get("input"), first.get("ctx", {})
    location = (*within, *first["loc"])
    if location and location[-1] == "[key]":
        return _long_key(path(location[:-2]), str(value), limits["max_length"])
    param = path(location)
    match kind:
        case "json_invalid":
            return InvalidInputError(_NOT_JSON)
        case "missing":
            return missing(param)
        case "extra_forbidden":
            return InvalidInputError(
                f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter"
            )
        case "literal_error" if isinstance(value, str):
            return _unsupported(value, limits["expected"].replace(" or ", ", "), param)
        case "literal_error":
            return _wrong_type(param, f"one of {limits['expected']}", value)
        case "greater_than_equal":
            return _out_of_bounds(
                param, f"below minimum value. Expected a value >= {limits['ge']}", value
            )
        case "less_than_equal":
            return _out_of_bounds(
                param, f"above maximum value. Expected a value <= {limits['le']}", value
            )
        case "string_too_long":
            return _long_string(param, limits["max_length"], str(value))
        case "too_long":
            # The limit's own count stops one above it.
            got = len(value) if isinstance(value, dict) else "more"
            return _many_properties(param, limits["max_length"], got)
        case _ if kind in _EXPECTED:
            return _wrong_type(param, _EXPECTED[kind], value)
        case _:
            reason = first["msg"].removeprefix("Value error, ")
            return InvalidInputError(
                f"Invalid value for '{param}': {reason}.", param=param, code="invalid_value"
            )


def _unsupported(value: str, supported: str, param: str) -> InvalidInputError:
    return InvalidInputError(
        f"Invalid value: '{value[:_SHOWN_CHARACTERS]}'. Supported values are: {supported}.",
        param=param,
        code="invalid_value",
    )


def _wrong_type(param: str, expected: str, value: object) -> InvalidInputError:
    where = f"'{param}'" if param else "the request body"
    return InvalidInputError(
        f"Invalid type for {where}: expected {expected}, but got {_named(value)} instead.",
        param=param or None,
        code="invalid_type",
    )


def _named(value: object) -> str:  # noqa: PLR0911  # one case per type
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case list():
            return "an array"
        case _:
            return "an object"


def _out_of_bounds(param: str, how: str, value: object) -> InvalidInputError:
    side = "below_min" if how.startswith("below") else "above_max"
    return InvalidInputError(
        f"Invalid '{param}': integer {how}, but got {value} instead.",
        param=param,
        code=f"integer_{side}_value",
    )


def _long_string(param: str, max_length: int, value: str) -> InvalidInputError:
    return InvalidInputError(
        f"Invalid '{param}': string too long. Expected a string with maximum length {max_length}, "
        f"but got a string with length {len(value)} instead.",
        param=param,
        code="string_above_max_length",
    )


def _many_properties(param: str, max_length: int, got: int | str) -> InvalidInputError:
    return InvalidInputError(
        f"Invalid '{param}': too many properties. Expected an object with at most {max_length} "
        f"properties, but got an object with {got} properties instead.",
        param=param,
        code="object_above_max_properties",
    )


def _long_key(whole: str, key: str, max_length: int) -> InvalidInputError:
    shown = key[:_SHOWN_CHARACTERS]
    return InvalidInputError(
        f"Invalid property name in '{whole}': '{shown}' is too long. Expected a string with "
        f"maximum length {max_length}, but got a string with length {len(key)} instead.",
        param=f"{whole}.{shown}",
        code="string_above_max_length",
    )

"""Rules for webhook endpoints: the bodies of their calls, and the errors for bad ones. Pure."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.fields import require_one_of
from shared.errors import InvalidInputError
from shared.openai.webhooks import EVENT_TYPES

_MAX_SHOWN_CHARACTERS = 200

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Url = Annotated[str, Field(max_length=2048)]
_EventType = Annotated[str, Field(json_schema_extra={"enum": list(EVENT_TYPES)})]
_EventTypes = Annotated[list[_EventType], Field(json_schema_extra={"minItems": 1})]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class CreateWebhookEndpoint(_Body):
    """The body of `create_webhook_endpoint`."""

    name: _Name
    url: _Url
    event_types: _EventTypes


class UpdateWebhookEndpoint(_Body):
    """The body of `update_webhook_endpoint`. Fields that are left out stay as they are."""

    name: _Name | None = None
    url: _Url | None = None
    event_types: _EventTypes | None = None


class RotateWebhookSecret(_Body):
    """The body of `rotate_webhook_secret`, which may be left out."""

    keep_old_secret_active_for_24_hours: bool = False


class TestWebhookEndpoint(_Body):
    """The body of `test_webhook_endpoint`."""

    event_type: _EventType


def require_event_types(event_types: list[str]) -> str:
    """The event types as the record keeps them.

    Raises InvalidInputError for an empty list, and for a type that does not exist.
    """
    if not event_types:
        raise InvalidInputError(
            "Invalid 'event_types': empty array. Expected an array with minimum length 1, but got "
            "an empty array instead.",
            param="event_types",
            code="empty_array",
        )
    for event_type in event_types:
        require_one_of(event_type, EVENT_TYPES, "event_types")
    return ",".join(dict.fromkeys(event_types))


def bad_url(url: str, why: str) -> InvalidInputError:
    """The error for a URL that would never be called."""
    return InvalidInputError(
        f"Invalid 'url': {why}, but got '{url[:_MAX_SHOWN_CHARACTERS]}'.",
        param="url",
        code="invalid_value",
    )


def unreachable(endpoint_id: str, error: str | None) -> InvalidInputError:
    """The error for a test whose receiver gave no answer."""
    return InvalidInputError(
        f"The webhook endpoint '{endpoint_id}' could not be reached: {error}.",
        code="webhook_endpoint_unreachable",
    )

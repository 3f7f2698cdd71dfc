"""Webhooks as OpenAI's SDK knows them, and what may be seen of their deliveries. Does no I/O.

Endpoints, events and headers are OpenAI's and those of Standard Webhooks; the delivery is ours.
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: The ends of a batch, which are OpenAI's types.
BATCH_EVENT_TYPES = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
#: The ends of a pipeline, for endpoints that ask for them: the SDKs mistake a type that they do not
#: know for another one.
PIPELINE_EVENT_TYPES = (
    "pipeline.completed",
    "pipeline.failed",
    "pipeline.expired",
    "pipeline.cancelled",
)
EVENT_TYPES = BATCH_EVENT_TYPES + PIPELINE_EVENT_TYPES

_PREFIX = "whsec_"
#: A multiple of three, so that the text needs no padding; Standard Webhooks allows 24 to 64.
_SECRET_BYTES = 36

DeliveryState = Literal["pending", "delivered", "failed"]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class WebhookEndpoint(_Shape):
    """Where a tenant's events go; `disabled_at` is only sent once an endpoint has answered 410."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    name: str
    url: str
    event_types: list[str]
    created_at: int
    updated_at: int | None = None
    signing_secret_hint: str | None = None
    disabled_at: int | None = Field(default=None, exclude_if=lambda value: value is None)


class WebhookEndpointWithSecret(WebhookEndpoint):
    """The answer to a creation and a rotation; the secret is never shown again."""

    signing_secret: str


class DeletedWebhookEndpoint(_Shape):
    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: bool = True


class WebhookEndpointTest(_Shape):
    """What the receiver answered to a sample event; `success` only says that it answered."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: Literal[True] = True


class WebhookEventTypes(_Shape):
    object: Literal["list"] = "list"
    data: list[str]


class WebhookEventData(_Shape):
    id: str


class WebhookEvent(_Shape):
    """What is sent. Receivers fetch the batch or pipeline if they need more."""

    id: str
    object: Literal["event"] = "event"
    type: str
    created_at: int
    data: WebhookEventData

    @property
    def about(self) -> str:
        """What has ended: `batch` or `pipeline`."""
        return self.type.partition(".")[0]

    def to_bytes(self) -> bytes:
        """The exact bytes of every attempt."""
        return json.dumps(self.model_dump(), separators=(",", ":")).encode()


class WebhookAttempt(_Shape):
    """One attempt: the receiver's status code, or why there was none."""

    attempted_at: int
    status_code: int | None
    error: str | None


class WebhookDelivery(_Shape):
    """One event on its way to one endpoint; the id is the header `webhook-id` of each attempt."""

    id: str
    object: Literal["webhook_endpoint.delivery"] = "webhook_endpoint.delivery"
    webhook_endpoint_id: str
    created_at: int
    event: WebhookEvent
    state: DeliveryState
    attempts: list[WebhookAttempt]
    next_attempt_at: int | None


def sample_id(event_type: str) -> str:
    """What a test delivery of this type names. No batch or pipeline has this id."""
    return f"{event_type.partition('.')[0]}_sample"


def new_secret() -> str:
    """A signing secret in the form of Standard Webhooks."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def secret_hint(secret: str) -> str:
    """Enough of a secret to recognise it, and too little to use it."""
    return f"{_PREFIX}***{secret[-4:]}"


def headers(
    delivery: str, timestamp: int, body: bytes, signing_secrets: Iterable[str]
) -> Mapping[str, str]:
    """The headers of Standard Webhooks, with a signature by each secret, over exactly `body`."""
    signed = b".".join((delivery.encode(), str(timestamp).encode(), body))
    return {
        "webhook-id": delivery,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(_signature(secret, signed) for secret in signing_secrets),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"

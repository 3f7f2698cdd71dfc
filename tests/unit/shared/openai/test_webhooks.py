import base64
import importlib
import importlib.util
import time
from typing import Any

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from shared.openai.webhooks import (
    BATCH_EVENT_TYPES,
    PIPELINE_EVENT_TYPES,
    WebhookEndpoint,
    WebhookEvent,
    WebhookEventData,
    headers,
    new_secret,
    secret_hint,
)
from tests.servers import absent

EVENT = WebhookEvent(
    id="evt_1", type="batch.completed", created_at=1_763_000_000, data=WebhookEventData(id="b")
)


@pytest.fixture
def standardwebhooks() -> Any:
    if importlib.util.find_spec("standardwebhooks") is None:
        absent("standardwebhooks", "PYTHONPATH")
    return importlib.import_module("standardwebhooks")


def test_the_body_is_openais_event() -> None:
    assert EVENT.to_bytes() == (
        b'{"id":"evt_1","object":"event","type":"batch.completed","created_at":1763000000,'
        b'"data":{"id":"b"}}'
    )


@pytest.mark.parametrize("kind", BATCH_EVENT_TYPES)
def test_openais_sdk_accepts_what_we_sign(kind: str) -> None:
    secret, event = new_secret(), EVENT.model_copy(update={"type": kind})
    body = event.to_bytes()

    unwrapped = _unwrap(body, headers("wh_1", int(time.time()), body, [secret]), secret)

    assert (unwrapped.type, unwrapped.data.id) == (kind, "b")
    words = kind.split(".")[1].capitalize()
    assert type(unwrapped).__name__ == f"Batch{words}WebhookEvent"


@pytest.mark.parametrize("kind", PIPELINE_EVENT_TYPES)
def test_openais_sdk_verifies_ends_of_pipelines_and_knows_only_their_type(kind: str) -> None:
    secret, event = new_secret(), EVENT.model_copy(update={"type": kind})
    body = event.to_bytes()

    unwrapped = _unwrap(body, headers("wh_1", int(time.time()), body, [secret]), secret)

    assert (unwrapped.type, unwrapped.data.id) == (kind, "b")


def test_an_independent_verifier_accepts_what_we_sign(standardwebhooks: Any) -> None:
    secret, body = new_secret(), EVENT.to_bytes()

    signed = headers("wh_1", int(time.time()), body, [secret])

    assert standardwebhooks.Webhook(secret).verify(body, dict(signed)) == EVENT.model_dump()
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(secret).verify(body + b" ", dict(signed))


def test_each_of_two_secrets_is_accepted_and_no_other(standardwebhooks: Any) -> None:
    old, new, other = new_secret(), new_secret(), new_secret()
    body = EVENT.to_bytes()

    signed = headers("wh_1", int(time.time()), body, [new, old])

    for secret in (old, new):
        assert _unwrap(body, signed, secret).id == "evt_1"
        assert standardwebhooks.Webhook(secret).verify(body, dict(signed))
    with pytest.raises(InvalidWebhookSignatureError):
        _unwrap(body, signed, other)


def test_a_secret_is_36_random_bytes_without_padding() -> None:
    secret = new_secret()

    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 36
    assert new_secret() != secret


def test_a_hint_shows_the_end_of_a_secret_alone() -> None:
    assert secret_hint("whsec_abcdefgh") == "whsec_***efgh"


def test_only_a_disabled_endpoint_says_more_than_openais() -> None:
    endpoint = WebhookEndpoint(id="we_1", name="n", url="u", event_types=[], created_at=1)

    assert "disabled_at" not in endpoint.model_dump()
    assert "disabled_at" not in endpoint.model_dump_json()
    assert endpoint.model_copy(update={"disabled_at": 5}).model_dump()["disabled_at"] == 5


def _unwrap(body: bytes, signed: Any, secret: str) -> Any:
    with OpenAI(api_key="none", webhook_secret=secret) as client:
        return client.webhooks.unwrap(body, signed)

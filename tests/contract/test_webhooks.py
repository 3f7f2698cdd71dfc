"""OpenAI's contract for webhooks: signed events for registered endpoints."""

import importlib.util
import time
from typing import Any

import pytest
from openai import OpenAI

from tests.contract.conftest import Caller, rows
from tests.contract.receiver import Receiver
from tests.eventually import wait_until
from tests.servers import absent


def test_both_libraries_verify_an_event(acme: Caller, receiver: Receiver) -> None:
    endpoint = _endpoint(acme, receiver.url)
    secret = endpoint["signing_secret"]

    batch = acme.run(rows("one"))
    wait_until(lambda: len(receiver.deliveries) == 1)

    headers, body = receiver.deliveries[0]
    client = OpenAI(api_key="-", webhook_secret=secret)
    event = client.webhooks.unwrap(body, headers)
    assert event.type == "batch.completed"
    assert event.data.id == batch["id"]
    assert event.id.startswith("evt_")
    assert headers["webhook-id"].startswith("wh_")
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    assert headers["content-type"] == "application/json"
    if importlib.util.find_spec("standardwebhooks") is None:
        absent("standardwebhooks", "PYTHONPATH")
    standard = importlib.import_module("standardwebhooks")
    assert standard.Webhook(secret).verify(body, headers)["data"] == {"id": batch["id"]}


def test_a_delivery_that_failed_is_sent_again_under_its_id(
    acme: Caller, receiver: Receiver
) -> None:
    _endpoint(acme, receiver.url)
    receiver.statuses = [500]

    acme.run(rows("one"))
    # The first repeat comes after five seconds, give or take.
    wait_until(lambda: len(receiver.deliveries) == 2)

    first, second = receiver.deliveries
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert int(second.headers["webhook-timestamp"]) > int(first.headers["webhook-timestamp"])


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/hook", "https://192.168.1.1/hook", "https://169.254.169.254/latest"]
)
def test_private_targets_are_refused(url: str, acme: Caller) -> None:
    answer = acme.http.post("/v1/webhook_endpoints", json=_params(url))

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "url"


def _endpoint(caller: Caller, url: str) -> dict[str, Any]:
    answer = caller.http.post("/v1/webhook_endpoints", json=_params(url))
    assert answer.status_code == 200, answer.text
    endpoint: dict[str, Any] = answer.json()
    return endpoint


def _params(url: str) -> dict[str, Any]:
    return {"name": "builds", "url": url, "event_types": ["batch.completed"]}

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from openai import BadRequestError, ConflictError, InternalServerError, NotFoundError
from openai.types.webhooks.webhook_endpoint import WebhookEndpoint
from openai.types.webhooks.webhook_endpoint_with_secret import WebhookEndpointWithSecret

import gateway.webhook_deliveries
from gateway.settings import GatewaySettings
from shared.lifecycle import Event
from shared.state import State
from tests.batches import validating
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway, calling, running
from tests.receiver import answers, receiving
from tests.repeated_scripts import repeating
from tests.webhooks import delivering

#: Nobody has this address, and no name server is asked for it.
#: Tests call no outside host; a name that does not resolve is accepted anyway.
URL = "https://hooks.invalid/hook"
SHOWN = {
    *("id", "object", "name", "url", "event_types"),
    *("created_at", "updated_at", "signing_secret_hint"),
}


@pytest.fixture(scope="module")
def private_gateway(settings: GatewaySettings) -> Iterator[Gateway]:
    """One whose operator lets webhooks go to this machine, over http."""
    allowed = {"webhook_http": True, "webhook_networks": (ip_network("127.0.0.0/8"),)}
    with running(settings.model_copy(update=allowed)) as gateway:
        yield gateway


@pytest.fixture
async def insider(private_gateway: Gateway, gateway_state: State) -> AsyncIterator[Caller]:
    async with calling(private_gateway, gateway_state) as caller:
        yield caller


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "webhook_event_types"),
        ("GET", "webhook_endpoints"),
        ("POST", "webhook_endpoints"),
        ("GET", "webhook_endpoints/we_x"),
        ("POST", "webhook_endpoints/we_x"),
        ("DELETE", "webhook_endpoints/we_x"),
        ("POST", "webhook_endpoints/we_x/rotate_secret"),
        ("POST", "webhook_endpoints/we_x/test"),
        ("GET", "webhook_endpoints/we_x/deliveries"),
        ("POST", "webhook_endpoints/we_x/deliveries/wh_x/redeliver"),
    ],
)
async def test_without_a_key_nothing_is_served(method: str, path: str, gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as stranger:
        answer = await stranger.request(method, f"/v1/{path}", content=b"{")

    assert answer.status_code == 401


async def test_a_new_endpoint_has_openais_fields_and_its_secret_once(acme: Caller) -> None:
    answer = await acme.http.post("/v1/webhook_endpoints", json=_params())

    made = answer.json()
    assert answer.status_code == 200
    assert made.keys() == SHOWN | {"signing_secret"}
    assert made == {
        **_params(),
        "id": made["id"],
        "object": "webhook_endpoint",
        "created_at": made["created_at"],
        "updated_at": made["created_at"],
        "signing_secret": made["signing_secret"],
        "signing_secret_hint": f"whsec_***{made['signing_secret'][-4:]}",
    }
    assert len(base64.b64decode(made["signing_secret"].removeprefix("whsec_"))) == 36
    shown = (await acme.http.get(f"/v1/webhook_endpoints/{made['id']}")).json()
    assert shown == {name: value for name, value in made.items() if name != "signing_secret"}


async def test_the_sdk_keeps_endpoints(acme: Caller) -> None:
    hooks = acme.openai.webhooks
    made = await hooks.create(name="n", url=URL, event_types=["batch.completed", "batch.failed"])
    assert isinstance(made, WebhookEndpointWithSecret)

    shown = await hooks.retrieve(made.id)
    changed = await hooks.update(
        made.id, name="ünïcode 🙂", url=f"{URL}/2", event_types=["batch.expired"]
    )
    rotated = await hooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    again = await hooks.rotate_secret(made.id)
    listed = [one async for one in hooks.list(limit=1)]
    deleted = await hooks.delete(made.id)

    assert isinstance(shown, WebhookEndpoint)
    assert (shown.name, shown.url) == ("n", URL)
    assert (changed.name, changed.url) == ("ünïcode 🙂", f"{URL}/2")
    assert changed.event_types == ["batch.expired"]
    assert len({made.signing_secret, rotated.signing_secret, again.signing_secret}) == 3
    assert [one.signing_secret_hint for one in listed] == [again.signing_secret_hint]
    assert deleted.model_dump() == {
        "id": made.id,
        "object": "webhook_endpoint.deleted",
        "deleted": True,
    }
    with pytest.raises(NotFoundError, match=made.id):
        await hooks.retrieve(made.id)
    with pytest.raises(NotFoundError, match=made.id):
        await hooks.delete(made.id)
    assert [one async for one in hooks.list()] == []


async def test_a_deletion_that_redis_does_twice_is_one(acme: Caller) -> None:
    hooks = acme.openai.webhooks
    made = await hooks.create(name="n", url=URL, event_types=["batch.completed"])

    with repeating("delete_webhook"):
        deleted = await hooks.delete(made.id)

    assert deleted.deleted
    assert [one async for one in hooks.list()] == []


async def test_the_event_types_are_the_ends_of_batches_and_pipelines(acme: Caller) -> None:
    types = await acme.openai.webhooks.event_types.list()

    assert types.object == "list"
    ends = ["completed", "failed", "expired", "cancelled"]
    assert types.data == [f"{noun}.{end}" for noun in ("batch", "pipeline") for end in ends]


async def test_endpoints_are_listed_newest_first_in_pages(acme: Caller) -> None:
    made = [(await _made(acme))["id"] for _ in range(5)]

    pages = await acme.openai.webhooks.list(limit=2)
    raw = (await acme.http.get("/v1/webhook_endpoints", params={"limit": 2})).json()

    assert [one.id async for one in pages] == made[::-1]
    assert (raw["first_id"], raw["last_id"], raw["has_more"]) == (made[4], made[3], True)
    assert raw["data"][0].keys() == SHOWN
    empty = (await acme.http.get("/v1/webhook_endpoints", params={"after": "after"})).json()
    assert empty == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    everything = (await acme.http.get("/v1/webhook_endpoints", params={"limit": 0})).json()
    assert len(everything["data"]) == 5


async def test_a_tenant_has_at_most_ten_endpoints(acme: Caller, globex: Caller) -> None:
    for _ in range(10):
        await _made(acme)

    with pytest.raises(BadRequestError, match="You have 10 webhook endpoints") as refused:
        await acme.openai.webhooks.create(name="n", url=URL, event_types=["batch.failed"])

    assert refused.value.code == "webhook_endpoint_limit_reached"
    await _made(globex)


@pytest.mark.parametrize(
    ("change", "param", "code", "message"),
    [
        ({"name": ""}, "name", "invalid_value", "Invalid value for 'name': String should have"),
        ({"name": 5}, "name", "invalid_type", "Invalid type for 'name': expected a string, but"),
        ({"name": "x" * 257}, "name", "string_above_max_length", "Invalid 'name': string too long"),
        ({"url": f"https://8.8.8.8/{'x' * 2048}"}, "url", "string_above_max_length", "Invalid 'u"),
        ({"event_types": []}, "event_types", "empty_array", "Invalid 'event_types': empty array"),
        (
            {"event_types": "batch.failed"},
            "event_types",
            "invalid_type",
            "Invalid type for 'event_types': expected an array, but got a string instead.",
        ),
        (
            {"event_types": ["batch.failed", "response.completed"]},
            "event_types",
            "invalid_value",
            "Invalid value: 'response.completed'. Supported values are: 'batch.completed', ",
        ),
        ({"event_types": [5]}, "event_types[0]", "invalid_type", "Invalid type for 'event_types"),
        ({"extra": 1}, "extra", "unknown_parameter", "Unknown parameter: 'extra'."),
        ({"url": "8.8.8.8"}, "url", "invalid_value", "Invalid 'url': expected a URL such as"),
        ({"url": "http://8.8.8.8/"}, "url", "invalid_value", "Invalid 'url': expected a URL that"),
        ({"url": "https://u:p@8.8.8.8"}, "url", "invalid_value", "Invalid 'url': expected a URL"),
        ({"url": "https://8.8.8.8/\n"}, "url", "invalid_value", "Invalid 'url': expected a URL"),
    ],
)
async def test_what_cannot_be_is_refused(
    change: dict[str, Any], param: str, code: str, message: str, acme: Caller
) -> None:
    made = await _made(acme)

    for path, body in (("", {**_params(), **change}), (f"/{made['id']}", change)):
        answer = await acme.http.post(f"/v1/webhook_endpoints{path}", json=body)

        error = answer.json()["error"]
        assert answer.status_code == 400, answer.text
        assert error["message"].startswith(message)
        assert error == {
            "message": error["message"],
            "type": "invalid_request_error",
            "param": param,
            "code": code,
        }
    assert len((await acme.openai.webhooks.list()).data) == 1


@pytest.mark.parametrize("field", ["name", "url", "event_types"])
async def test_every_field_has_to_be_there(field: str, acme: Caller) -> None:
    params = {name: value for name, value in _params().items() if name != field}

    answer = await acme.http.post("/v1/webhook_endpoints", json=params)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"Missing required parameter: '{field}'."


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "0x7f.1",
        "2130706433",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "[fd00:ec2::254]",
        "[fe80::1]",
    ],
)
async def test_a_private_address_is_refused_by_any_spelling_or_name(
    host: str, acme: Caller
) -> None:
    made = await _made(acme)

    with pytest.raises(BadRequestError, match="has to be at a public address") as refused:
        await acme.openai.webhooks.create(
            name="n", url=f"https://{host}/hook", event_types=["batch.failed"]
        )
    with pytest.raises(BadRequestError, match="has to be at a public address"):
        await acme.openai.webhooks.update(made["id"], url=f"https://{host}:8443/")

    assert refused.value.param == "url"
    assert (await acme.openai.webhooks.retrieve(made["id"])).url == URL


async def test_a_name_that_cannot_be_resolved_yet_is_taken(acme: Caller) -> None:
    made = await _made(acme, url="https://nowhere.invalid/hook")

    assert made["url"] == "https://nowhere.invalid/hook"


async def test_the_operator_may_allow_http_and_a_private_network(insider: Caller) -> None:
    await _made(insider, url="http://127.0.0.1:8080/hook")

    with pytest.raises(BadRequestError, match="public address"):
        await insider.openai.webhooks.create(
            name="n", url="http://10.0.0.1/", event_types=["batch.failed"]
        )


@pytest.mark.parametrize("content", [None, b"", b"{}"])
async def test_a_rotation_needs_no_body(content: bytes | None, acme: Caller) -> None:
    made = await _made(acme)

    answer = await acme.http.post(
        f"/v1/webhook_endpoints/{made['id']}/rotate_secret", content=content
    )

    assert answer.status_code == 200
    assert answer.json()["signing_secret"] != made["signing_secret"]


async def test_anothers_endpoint_is_not_found_by_any_verb(
    acme: Caller, globex: Caller, gateway_state: State
) -> None:
    made = await _made(acme)
    await _failed(gateway_state, acme)
    path = f"/v1/webhook_endpoints/{made['id']}"
    (delivery,) = (await acme.http.get(f"{path}/deliveries")).json()["data"]
    redeliver = f"/deliveries/{delivery['id']}/redeliver"

    for method, suffix, body in [
        ("GET", "", None),
        ("POST", "", {"name": "mine"}),
        ("DELETE", "", None),
        ("POST", "/rotate_secret", {}),
        ("POST", "/test", {"event_type": "batch.failed"}),
        ("GET", "/deliveries", None),
        ("POST", redeliver, None),
    ]:
        theirs = await globex.http.request(method, f"{path}{suffix}", json=body)
        nobodys = await globex.http.request(
            method, f"/v1/webhook_endpoints/we_x{suffix}", json=body
        )
        assert (theirs.status_code, nobodys.status_code) == (404, 404), suffix
        assert theirs.text.replace(made["id"], "") == nobodys.text.replace("we_x", "")
        assert theirs.json()["error"]["param"] == "webhook_endpoint_id"

    assert (await globex.openai.webhooks.list()).data == []
    assert (await acme.openai.webhooks.retrieve(made["id"])).name == "n"


async def test_deliveries_are_listed_and_sent_again(insider: Caller, gateway_state: State) -> None:
    async with receiving(answers(500)) as receiver:
        made = await _made(insider, url=receiver.url)
        path = f"/v1/webhook_endpoints/{made['id']}/deliveries"
        batches = [await _failed(gateway_state, insider) for _ in range(3)]

        first = (await insider.http.get(path, params={"limit": 2})).json()
        rest = (await insider.http.get(path, params={"limit": 2, "after": first["last_id"]})).json()

        assert [one["event"]["data"]["id"] for one in first["data"]] == batches[:0:-1]
        assert (first["first_id"], first["has_more"]) == (first["data"][0]["id"], True)
        (oldest,) = rest["data"]
        assert rest["has_more"] is False
        assert oldest == {
            "id": oldest["id"],
            "object": "webhook_endpoint.delivery",
            "webhook_endpoint_id": made["id"],
            "created_at": oldest["created_at"],
            "event": {
                "id": f"evt_{batches[0]}_00000002",
                "object": "event",
                "type": "batch.failed",
                "created_at": oldest["created_at"],
                "data": {"id": batches[0]},
            },
            "state": "pending",
            "attempts": [],
            "next_attempt_at": oldest["created_at"],
        }

        async def are_delivered() -> bool:
            shown = (await insider.http.get(path)).json()["data"]
            return [one["state"] for one in shown] == ["delivered"] * 3

        async with delivering(gateway_state):
            # One that is being sent would be left alone.
            await eventually(are_delivered)
            before = receiver.ids
            again = await insider.http.post(f"{path}/{oldest['id']}/redeliver")
            await eventually(lambda: len(receiver.calls) == 5)
        assert again.json()["state"] in ("pending", "delivered")
        assert receiver.ids == [*before, oldest["id"]]

    unknown = await insider.http.post(f"{path}/wh_x/redeliver")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["param"] == "delivery_id"


async def test_a_test_says_what_the_receiver_answered(
    insider: Caller, gateway_state: State
) -> None:
    async with receiving(answers(500)) as receiver, delivering(gateway_state):
        made = await _made(insider, url=receiver.url)

        failed = await insider.openai.webhooks.test(made["id"], event_type="batch.failed")
        taken = await insider.openai.webhooks.test(made["id"], event_type="batch.completed")

        assert failed.model_dump() == {
            "object": "webhook_endpoint.test",
            "webhook_endpoint_id": made["id"],
            "event_type": "batch.failed",
            "status_code": 500,
            "success": True,
        }
        assert taken.status_code == 200
        kinds = [call.unwrapped(made["signing_secret"]).type for call in receiver.calls]
        assert kinds == ["batch.failed", "batch.completed"]


async def test_a_test_of_what_nobody_listens_at_says_so(
    insider: Caller, gateway_state: State
) -> None:
    async with receiving() as receiver:
        made = await _made(insider, url=receiver.url)

    async with delivering(gateway_state):
        with pytest.raises(BadRequestError, match="could not be reached: ConnectError") as refused:
            await insider.openai.webhooks.test(made["id"], event_type="batch.failed")

    assert refused.value.code == "webhook_endpoint_unreachable"


async def test_one_test_of_an_endpoint_at_a_time(insider: Caller, gateway_state: State) -> None:
    async with receiving() as receiver, delivering(gateway_state):
        receiver.gate.clear()
        made = await _made(insider, url=receiver.url)
        testing = asyncio.create_task(
            insider.openai.webhooks.test(made["id"], event_type="batch.failed")
        )
        await eventually(lambda: len(receiver.calls) == 1)

        with pytest.raises(ConflictError, match="Another test of the webhook endpoint"):
            await insider.openai.webhooks.test(made["id"], event_type="batch.failed")

        receiver.gate.set()
        assert (await testing).status_code == 200


async def test_without_a_dispatcher_a_test_can_be_tried_later(
    insider: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.webhook_deliveries, "_TEST_SECONDS", 0.1)
    made = await _made(insider)

    with pytest.raises(InternalServerError) as unavailable:
        await insider.openai.webhooks.test(made["id"], event_type="batch.failed")

    assert unavailable.value.status_code == 503


async def test_a_disabled_endpoint_says_so_until_it_is_updated(
    insider: Caller, gateway_state: State
) -> None:
    async with receiving(answers(410)) as receiver, delivering(gateway_state):
        made = await _made(insider, url=receiver.url)
        await _failed(gateway_state, insider)

        async def is_disabled() -> bool:
            shown = await insider.http.get(f"/v1/webhook_endpoints/{made['id']}")
            return "disabled_at" in shown.json()

        await eventually(is_disabled)
        path = f"/v1/webhook_endpoints/{made['id']}/deliveries"
        (delivery,) = (await insider.http.get(path)).json()["data"]
        refused = await insider.http.post(f"{path}/{delivery['id']}/redeliver")
        assert (refused.status_code, delivery["state"]) == (409, "failed")

        await insider.openai.webhooks.update(made["id"])

        assert not await is_disabled()
        await insider.http.post(f"{path}/{delivery['id']}/redeliver")
        await eventually(lambda: len(receiver.calls) == 2)


async def test_what_is_not_in_openais_api_is_marked_in_the_schema(acme: Caller) -> None:
    schema = (await acme.http.get("/openapi.json")).json()

    paths, shapes = schema["paths"], schema["components"]["schemas"]
    assert shapes["WebhookEndpoint"]["properties"].keys() == SHOWN | {"disabled_at"}
    for path, method in (
        ("/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries", "get"),
        (
            "/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/redeliver",
            "post",
        ),
    ):
        assert paths[path][method]["x-batchyard"]
        assert paths[path][method]["description"]


def _params(**changes: Any) -> dict[str, Any]:
    return {"name": "n", "url": URL, "event_types": ["batch.completed", "batch.failed"], **changes}


async def _made(caller: Caller, **changes: Any) -> dict[str, Any]:
    answer = await caller.http.post("/v1/webhook_endpoints", json=_params(**changes))
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def _failed(state: State, caller: Caller) -> str:
    """A batch of the caller that has failed."""
    batch_id = await validating(state, tenant=caller.tenant)
    await state.apply(batch_id, Event.INPUT_REJECTED)
    return batch_id

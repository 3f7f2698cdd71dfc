"""Live calls through a real gateway to real doors; what stands for vLLM answers as it is asked."""

import asyncio
import base64

import httpx
import openai
import pytest

from shared.ledger.tenants import change_tenant
from shared.scopes import Scope
from shared.state import State
from shared.storage import Storage
from tests.eventually import eventually
from tests.integration.gateway.conftest import EARS, LANE, Caller, Start
from tests.live_replica import ANSWER, BREAK, DIE, DONE, EVENTS, HELLO, REFUSE, WAIT
from worker.drain import Drain

CHAT = "/v1/chat/completions"


def body(says: str = HELLO, **changes: object) -> dict[str, object]:
    messages = [{"role": "user", "content": says}]
    return {"model": "tiny", "messages": messages, "stream": True, **changes}


async def test_a_stream_comes_as_the_engine_writes_it(acme: Caller, start: Start) -> None:
    replica = await start("bytes")

    answer = await acme.http.post(CHAT, json=body())

    assert answer.content == b"".join(EVENTS) + DONE
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-accel-buffering"] == "no"
    assert replica.app.request_ids == [answer.headers["x-request-id"]]
    assert {"x-ratelimit-limit-requests", "x-ratelimit-remaining-tokens"} <= answer.headers.keys()


async def test_a_sound_may_come_as_the_sdk_sends_it(acme: Caller, start: Start) -> None:
    replica = await start("ears", lane=EARS)

    await acme.openai.audio.transcriptions.create(
        model="ears", file=("a.wav", b"RIFF\r\n--x"), language="en", temperature=0.5
    )
    translated = await acme.http.post(
        "/v1/audio/translations", data={"model": "ears"}, files={"file": ("a.wav", b"RIFF")}
    )
    assert translated.status_code == 200
    with pytest.raises(openai.BadRequestError, match="chunking_strategy"):
        await acme.openai.audio.transcriptions.create(
            model="ears", file=("a.wav", b"RIFF"), chunking_strategy="auto"
        )

    first, second = replica.app.bodies
    assert base64.b64decode(first.pop("file_url").partition(",")[2]) == b"RIFF\r\n--x"
    assert first == {"model": "ears", "language": "en", "temperature": "0.5"}
    assert second.keys() == {"model", "file_url"}


async def test_tenants_have_salts_of_their_own(acme: Caller, globex: Caller, start: Start) -> None:
    replica = await start("salts")

    for caller in (acme, acme, globex):
        await caller.http.post(CHAT, json=body())

    first, second, other = replica.app.salts
    assert first == second != other


async def test_a_call_leaves_the_engine_when_its_client_goes(
    acme: Caller, start: Start, gateway_state: State
) -> None:
    replica = await start("gone")

    async with acme.http.stream("POST", CHAT, json=body(WAIT)) as answer:
        assert await anext(answer.aiter_raw()) == EVENTS[0]
        assert replica.entrance.seated == 1

    await eventually(lambda: replica.entrance.seated == 0 and replica.calls.running == 0)

    async def is_counted_no_longer() -> bool:
        return (await gateway_state.tenants.usage(acme.tenant, ())).live_calls == 0

    await eventually(is_counted_no_longer)


async def test_a_stream_whose_engine_dies_ends_with_an_error_that_the_sdk_raises(
    acme: Caller, start: Start
) -> None:
    await start("dies")
    stream = await acme.openai.chat.completions.create(**body(BREAK))  # type: ignore[call-overload]  # the body of a test

    got = []
    with pytest.raises(openai.APIError, match="died while it answered"):
        async for chunk in stream:
            got.append(chunk.choices[0].delta.content)  # noqa: PERF401  # it breaks

    assert got == ["0"]


async def test_a_call_that_no_engine_has_is_tried_at_another_door(
    acme: Caller, start: Start
) -> None:
    broken = await start("broken")
    broken.client.errored = True
    good = await start("good")
    await asyncio.sleep(0.6)

    answers = [await acme.http.post(CHAT, json=body()) for _ in range(4)]

    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(good.app.bodies) == 4
    assert broken.app.bodies == []


async def test_a_replica_that_stops_ends_its_calls_and_others_get_the_next_ones(
    acme: Caller, start: Start
) -> None:
    stopping = await start("stopping")
    ending = asyncio.create_task(acme.http.post(CHAT, json=body(WAIT, stream=False)))
    await eventually(lambda: stopping.entrance.seated == 1)
    other = await start("other")
    drain = Drain(stopping.entrance, stopping.calls, seconds=60)
    draining = asyncio.create_task(drain.run())
    await eventually(lambda: drain.has_begun)

    # The gateway still knows its door.
    answers = [await acme.http.post(CHAT, json=body()) for _ in range(4)]
    assert not draining.done()
    stopping.app.may_end.set()

    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(other.app.bodies) == 4
    assert (await ending).content == ANSWER
    async with asyncio.timeout(60):
        await draining


async def test_a_call_that_engines_die_of_is_not_tried_without_end(
    acme: Caller, start: Start
) -> None:
    replicas = [await start(f"poisoned-{number}") for number in range(3)]
    await asyncio.sleep(0.6)

    answer = await acme.http.post(CHAT, json=body(DIE))

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_died")
    assert answer.headers["x-should-retry"] == "false"
    assert sum(len(replica.app.bodies) for replica in replicas) == 2


async def test_a_cold_model_is_asked_for_and_the_call_may_come_again(
    acme: Caller, gateway_state: State
) -> None:
    answer = await acme.http.post(CHAT, json=body())

    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "10"
    assert answer.json()["error"]["code"] == "engine_starting"
    assert await gateway_state.doors.are_wanted(LANE)


async def test_a_call_waits_for_an_engine_that_starts(acme: Caller, start: Start) -> None:
    calling = asyncio.create_task(acme.http.post(CHAT, json=body()))
    await asyncio.sleep(0.2)
    await start("late")

    assert (await calling).status_code == 200


async def test_while_nobody_shows_doors_calls_in_flight_go_on_and_new_ones_get_503(
    acme: Caller, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when Ray's head is away: the lane job cannot ask it which replicas run.
    monkeypatch.setattr("shared.state.doors._KNOWN_SECONDS", 2.0)
    replica = await start("headless")
    ending = asyncio.create_task(acme.http.post(CHAT, json=body(WAIT, stream=False)))
    await eventually(lambda: replica.entrance.seated == 1)

    async def is_refused() -> bool:
        answer = await acme.http.post(CHAT, json=body())
        return (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_starting")

    await asyncio.sleep(2.0)
    await eventually(is_refused)
    assert not ending.done()
    replica.app.may_end.set()

    assert (await ending).content == ANSWER


@pytest.mark.parametrize(
    ("changes", "status", "param", "code"),
    [
        ({"model": "nobody"}, 404, "model", "model_not_found"),
        ({"model": "my-adapter"}, 404, "model", "model_not_live"),
        ({"model": None}, 400, "model", None),
        ({"messages": "hello"}, 400, "messages", "invalid_value"),
        ({"temperature": 9}, 400, "temperature", "invalid_value"),
        ({"cache_salt": "x"}, 400, "cache_salt", "invalid_value"),
    ],
)
async def test_what_cannot_run_is_refused_with_its_place(
    acme: Caller, changes: dict[str, object], status: int, param: str, code: str | None
) -> None:
    answer = await acme.http.post(CHAT, json=body() | changes)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)


async def test_the_engines_own_refusal_has_openais_form(acme: Caller, start: Start) -> None:
    await start("refuses")

    answer = await acme.http.post(CHAT, json=body(REFUSE))

    assert (answer.status_code, answer.json()) == (
        400,
        {
            "error": {
                "message": "Too long.",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        },
    )


async def test_live_calls_have_limits_of_their_own(
    acme: Caller, start: Start, gateway_state: State, bucket: Storage
) -> None:
    replica = await start("limits")
    await change_tenant(
        gateway_state,
        bucket,
        acme.tenant,
        {"live_calls": 1, "live_tokens_per_minute": 3000, "live_requests_per_minute": 4},
    )
    async with acme.http.stream("POST", CHAT, json=body(WAIT, max_tokens=1000)) as answer:
        assert answer.status_code == 200
        beside = await acme.http.post(CHAT, json=body())
    await eventually(lambda: replica.calls.running == 0)

    async def after() -> httpx.Response:
        return await acme.http.post(CHAT, json=body(max_tokens=2500))

    too_long = await after()
    await after()
    too_many = await after()

    codes = [one.json()["error"]["code"] for one in (beside, too_long, too_many)]
    assert [one.status_code for one in (beside, too_long, too_many)] == [429] * 3
    assert codes == ["live_call_limit_exceeded", "rate_limit_exceeded", "rate_limit_exceeded"]
    assert "tokens of live requests" in too_long.json()["error"]["message"]
    assert "live requests per min" in too_many.json()["error"]["message"]
    assert (await acme.http.get("/v1/models")).status_code == 200


async def test_a_live_call_needs_its_scope(acme: Caller, gateway_state: State) -> None:
    await gateway_state.keys.add(acme.tenant, "sk-batches-only", scopes=(Scope.READ, Scope.SUBMIT))

    answer = await acme.http.post(
        CHAT, json=body(), headers={"authorization": "Bearer sk-batches-only"}
    )

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


async def test_a_door_lets_nobody_in_without_its_token(start: Start) -> None:
    replica = await start("token", shown=False)
    url = f"http://127.0.0.1:{replica.door.port}{CHAT}"

    async with httpx.AsyncClient() as client:
        answers = [
            await client.post(url, json=body(), headers=headers)
            for headers in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer x"})
        ]
        answers.append(await client.get(f"http://127.0.0.1:{replica.door.port}/"))

    assert [answer.status_code for answer in answers] == [401] * 4
    assert replica.app.bodies == []

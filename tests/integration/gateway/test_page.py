"""The page over HTTP: who gets in, what a form may do, and what all open pages cost."""

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import httpx
import pytest
from redis.asyncio import Redis

from gateway.settings import GatewaySettings
from gateway.ui.words import when
from shared.bus import topology
from shared.bus.connection import Bus
from shared.engines import EngineRecord
from shared.lifecycle import Event
from shared.scopes import Scope
from shared.state import State
from shared.state.batches import Told
from tests.batches import JOB, claim, feed, in_progress, part, validating
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway, running

_LINE = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
}


class Browser:
    """Somebody at the page, without JavaScript."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def sign_in(self, key: str) -> httpx.Response:
        return await self.http.post("/ui/sign-in", data={"key": key})

    async def csrf(self) -> str:
        page = await self.http.get("/ui/new")
        found = re.search(r'name="csrf" value="(\w+)"', page.text)
        assert found is not None
        return found[1]


@pytest.fixture
async def browser(gateway: Gateway) -> AsyncIterator[Browser]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        yield Browser(http)


@pytest.fixture
async def visitor(browser: Browser, acme: Caller) -> Browser:
    """Signed in for acme."""
    await browser.sign_in(acme.key)
    return browser


@pytest.mark.parametrize("path", ["/ui/batches", "/ui/events", "/ui/new", "/ui/batches/live"])
async def test_whoever_is_not_signed_in_is_led_to_the_form_and_back(
    path: str, browser: Browser, acme: Caller
) -> None:
    led = await browser.http.get(path)
    form = await browser.http.get(led.headers["location"])
    way = re.search(r'name="next" value="([^"]+)"', form.text)
    entered = await browser.http.post(
        "/ui/sign-in", data={"key": acme.key, "next": way[1] if way else ""}
    )

    assert (led.status_code, entered.status_code) == (303, 303)
    assert entered.headers["location"] == path


async def test_the_home_of_the_gateway_leads_to_the_page(browser: Browser) -> None:
    for path in ("/", "/ui", "/ui/"):
        assert (await browser.http.get(path)).headers["location"] == "/ui/batches"


async def test_nobody_is_led_elsewhere_after_the_sign_in(browser: Browser, acme: Caller) -> None:
    for way in (
        "https://evil.example/ui/",
        "//evil.example/ui/",
        "/ui/\\evil.example",
        "/other",
        "//[",
    ):
        entered = await browser.http.post("/ui/sign-in", data={"key": acme.key, "next": way})

        assert entered.headers["location"] == "/ui/batches"


async def test_the_cookie_is_a_token_that_scripts_cannot_read_and_not_the_key(
    browser: Browser, acme: Caller, gateway_state: State, gateway: Gateway
) -> None:
    entered = await browser.sign_in(acme.key)
    secured = await browser.http.post(
        "/ui/sign-in", data={"key": acme.key}, headers={"x-forwarded-proto": "https"}
    )

    cookie = entered.headers["set-cookie"]
    token = re.match(r"batchyard-session=([\w-]+);", cookie)
    assert token is not None and acme.key not in cookie
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))
    over_https = secured.headers["set-cookie"]
    assert over_https.startswith("__Host-batchyard-session=") and "Secure" in over_https
    # Neither the token nor the key is in Redis.
    assert await gateway_state.sessions.key_digest(token[1])
    async with Redis.from_url(gateway.settings.redis_url.get_secret_value()) as redis:
        keys = [key async for key in redis.scan_iter(match="{batchyard}:session:*", count=1000)]
        values = await redis.mget(keys)
    stored = b" ".join([*keys, *values]).decode()
    assert token[1] not in stored and acme.key not in stored


async def test_a_wrong_key_gets_the_form_again_and_no_cookie(browser: Browser) -> None:
    refused = await browser.sign_in("sk-batchyard-wrong-and-long-enough")

    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    assert "Incorrect API key provided" in refused.text
    assert "wrong-and-long" not in refused.text


async def test_a_key_that_is_revoked_ends_its_sessions(
    visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    assert (await visitor.http.get("/ui/batches")).status_code == 200

    await gateway_state.keys.revoke((await gateway_state.keys.get(acme.key)).id)

    assert (await visitor.http.get("/ui/batches")).status_code == 303


async def test_the_session_ends_with_the_sign_out(visitor: Browser) -> None:
    csrf, cookies = await visitor.csrf(), dict(visitor.http.cookies)

    await visitor.http.post("/ui/sign-out", data={"csrf": csrf})

    visitor.http.cookies.update(cookies)
    assert (await visitor.http.get("/ui/batches")).status_code == 303


async def test_every_answer_forbids_scripts_and_styles_from_elsewhere(visitor: Browser) -> None:
    for path in ("/ui/batches", "/ui/sign-in", "/ui/nothing", "/ui/new"):
        policy = (await visitor.http.get(path)).headers["content-security-policy"]

        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


async def test_the_page_has_no_script_and_no_style_of_its_own(
    visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant)

    for path in ("/ui/batches", f"/ui/batches/{batch_id}", "/ui/events", "/ui/new"):
        text = (await visitor.http.get(path)).text

        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", text)


async def test_static_files_are_kept_by_browsers_and_need_no_key(browser: Browser) -> None:
    page = await browser.http.get("/ui/sign-in")
    urls = re.findall(r'(?:href|src)="(/ui/static/[^"]+)"', page.text)
    files = [await browser.http.get(url) for url in urls]

    assert len(urls) >= 4
    assert {file.status_code for file in files} == {200}
    assert all("immutable" in file.headers["cache-control"] for file in files)
    strange = await browser.http.get(urls[0].replace("/static/", "/static/../"))
    assert strange.status_code == 404


async def test_a_batchs_page_tells_what_it_cost_and_when_it_will_be_done(
    visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    prices = '{"currency": "eur", "pools": {"gpu": 3.6}}'
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, prices=prices)
    await feed(gateway_state, batch_id)
    [first] = await claim(gateway_state)
    await gateway_state.claims.commit(first, part(first)._replace(spent="gpu=41700000"))
    at = int(time.time()) + 1000
    basis = {"pace": "batch", "batches": 19, "start_seconds": 0}
    told = {"finish_at": at, "finish_p80_at": at + 2000, "rests_on": basis}
    await gateway_state.batches.predict([Told(batch_id, json.dumps(told))])

    text = _words(await visitor.http.get(f"/ui/batches/{batch_id}"))

    assert "Cost 0.0417 EUR 41.7 s of GPUs" in text
    assert "GPU time 41.7 s on pool gpu" in text
    assert "Time left 17 min to 50 min left" in text
    assert f"Will be done {when(at)} , or as late as {when(at + 2000)}" in text
    assert "as 19 batches like it" in text
    assert "17 min to 50 min left" in _words(await visitor.http.get("/ui/batches"))


async def test_what_others_have_does_not_exist(
    visitor: Browser, globex: Caller, gateway_state: State
) -> None:
    batch_id = await in_progress(gateway_state, tenant=globex.tenant, metadata='{"a": "secret"}')
    csrf = await visitor.csrf()

    for way in ("", "/live", "/results", "/failed"):
        assert (await visitor.http.get(f"/ui/batches/{batch_id}{way}")).status_code == 404
    for act in ("cancel", "pause", "resume", "retry"):
        done = await visitor.http.post(f"/ui/batches/{batch_id}/{act}", data={"csrf": csrf})
        assert done.status_code == 404
    assert "secret" not in (await visitor.http.get("/ui/batches")).text
    assert batch_id not in (await visitor.http.get("/ui/events")).text


@pytest.mark.parametrize(
    ("changes", "headers"),
    [
        ({"csrf": "0" * 64}, {}),
        ({"csrf": ""}, {}),
        ({}, {"origin": "https://evil.example"}),
        ({}, {"origin": "http://["}),
        ({}, {"sec-fetch-site": "cross-site"}),
        ({}, {"sec-fetch-site": "same-site"}),
    ],
)
async def test_a_form_of_another_site_does_nothing(
    changes: dict[str, str],
    headers: dict[str, str],
    visitor: Browser,
    acme: Caller,
    gateway_state: State,
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant)
    form = {"csrf": await visitor.csrf(), **changes}

    answer = await visitor.http.post(f"/ui/batches/{batch_id}/cancel", data=form, headers=headers)
    upload = await visitor.http.post(
        "/ui/files",
        data={**form, "purpose": "batch"},
        files={"file": ("in.jsonl", b"{}\n")},
        headers=headers,
    )

    assert (answer.status_code, upload.status_code) == (403, 403)
    assert (await gateway_state.batches.get(batch_id)).status == "in_progress"
    assert (await acme.http.get("/v1/files")).json()["data"] == []


async def test_another_site_cannot_sign_anybody_in(browser: Browser, acme: Caller) -> None:
    answer = await browser.http.post(
        "/ui/sign-in", data={"key": acme.key}, headers={"origin": "https://evil.example"}
    )

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_a_key_that_may_only_read_sees_no_buttons_and_can_press_none(
    browser: Browser, acme: Caller, gateway_state: State
) -> None:
    key = f"sk-batchyard-{secrets.token_hex(20)}"
    await gateway_state.keys.add(acme.tenant, key, scopes=(Scope.READ,))
    await browser.sign_in(key)
    batch_id = await in_progress(gateway_state, tenant=acme.tenant)

    shown = await browser.http.get(f"/ui/batches/{batch_id}")
    done = await browser.http.post(
        f"/ui/batches/{batch_id}/cancel", data={"csrf": await browser.csrf()}
    )

    assert shown.status_code == 200 and "Cancel" not in shown.text
    assert done.status_code == 403 and "Missing scopes: submit" in done.text


async def test_calls_of_the_page_count_against_the_limits_of_the_tenant(
    settings: GatewaySettings, gateway_state: State
) -> None:
    few = settings.model_copy(update={"requests_per_minute": 2})
    tenant = f"t{secrets.token_hex(4)}"
    key = await gateway_state.keys.create(tenant)
    with running(few) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            await http.post("/ui/sign-in", data={"key": key})
            answers = [await http.get("/ui/batches") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 429]


async def test_a_file_is_checked_and_then_started_once_however_often_the_form_comes(
    visitor: Browser, acme: Caller
) -> None:
    csrf = await visitor.csrf()
    uploaded = await visitor.http.post(
        "/ui/files",
        data={"csrf": csrf, "purpose": "batch"},
        files={"file": ("in.jsonl", json.dumps(_LINE).encode() + b"\n")},
    )
    report = await visitor.http.get(uploaded.headers["location"])
    before = (await acme.http.get("/v1/batches")).json()["data"]
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', report.text))
    form |= {"label": "mine", "priority": "7"}
    started = [await visitor.http.post("/ui/batches", data=form) for _ in range(2)]

    assert uploaded.status_code == 303
    assert "Every request would run" in report.text
    assert before == []
    assert len({answer.headers["location"] for answer in started}) == 1
    [batch] = (await acme.http.get("/v1/batches")).json()["data"]
    assert batch["metadata"] == {"label": "mine"}
    assert batch["endpoint"] == "/v1/chat/completions"


@pytest.mark.parametrize("line", [b'{"url": []}', b'{"url": {}}', b"[]", b"[" * 60_000])
async def test_a_file_whose_first_line_is_no_request_is_shown_with_what_is_wrong(
    line: bytes, visitor: Browser, acme: Caller
) -> None:
    uploaded = await acme.http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", line + b"\n")}
    )
    file_id = uploaded.json()["id"]

    page = await visitor.http.get(f"/ui/new/{file_id}")

    assert (page.status_code, page.headers["content-type"][:9]) == (200, "text/html")


async def test_a_priority_of_thousands_of_digits_is_refused(visitor: Browser) -> None:
    form = {
        "csrf": await visitor.csrf(),
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "priority": "9" * 5000,
    }

    assert (await visitor.http.post("/ui/batches", data=form)).status_code == 400


async def test_the_trail_has_what_is_done_on_the_page(
    settings: GatewaySettings, gateway_state: State, tmp_path: Path
) -> None:
    trail = tmp_path / "trail.jsonl"
    tenant = f"t{secrets.token_hex(4)}"
    key = await gateway_state.keys.create(tenant)
    batch_id = await in_progress(gateway_state, tenant=tenant)
    with running(settings.model_copy(update={"trail_file": trail})) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            browser = Browser(http)
            await browser.sign_in(key)
            form = {"csrf": await browser.csrf()}
            for act in ("pause", "resume", "cancel"):
                await http.post(f"/ui/batches/{batch_id}/{act}", data=form)
            await http.post("/ui/sign-out", data=form)

    acts = [json.loads(line) for line in trail.read_text().splitlines()]
    assert [act["act"] for act in acts] == [
        "session.opened",
        "batch.paused",
        "batch.resumed",
        "batch.cancelled",
        "session.closed",
    ]
    assert {act["tenant"] for act in acts} == {tenant}
    assert {act["object"] for act in acts[1:4]} == {batch_id}


async def test_a_filter_finds_what_is_far_back(
    visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    wanted = await validating(gateway_state, tenant=acme.tenant, metadata='{"label": "needle"}')
    for _ in range(120):
        await validating(gateway_state, tenant=acme.tenant)

    first = await visitor.http.get("/ui/batches")
    found = await visitor.http.get("/ui/batches", params={"words": "NEEDLE"})
    none = await visitor.http.get("/ui/batches", params={"status": "completed"})

    assert wanted not in first.text
    assert len(re.findall(r'<tr id="batch_', first.text)) == 50
    assert re.findall(r'<tr id="(batch_\w+)"', found.text) == [wanted]
    assert "Nothing found" in none.text


async def test_all_batches_can_be_paged_through(
    visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    made = {await validating(gateway_state, tenant=acme.tenant) for _ in range(101)}
    seen: list[str] = []
    way: str | None = "/ui/batches"
    while way:
        text = (await visitor.http.get(way)).text
        seen += re.findall(r'<tr id="(batch_\w+)"', text)
        older = re.search(r'rel="next" href="([^"]+)"', text)
        way = older[1].replace("&amp;", "&") if older else None

    assert len(seen) == 101
    assert set(seen) == made


async def test_metadata_and_errors_are_shown_as_text(
    visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    nasty = "<script>alert(1)</script>"
    batch_id = await in_progress(
        gateway_state, tenant=acme.tenant, metadata=json.dumps({"label": nasty})
    )

    for path in ("/ui/batches", f"/ui/batches/{batch_id}"):
        text = (await visitor.http.get(path)).text

        assert nasty not in text and "&lt;script&gt;" in text


async def test_an_open_page_hears_of_each_change(
    visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    lane = f"m@{secrets.token_hex(4)}"
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=1, lane=lane)

    async with _following(visitor.http, f"/ui/batches/{batch_id}/live") as parts:
        assert "Running" in await anext(parts)
        await feed(gateway_state, batch_id, slices=1, lane=lane)
        [one] = await claim(gateway_state, lane=lane)
        await gateway_state.claims.commit(one, part(one))
        await gateway_state.apply(batch_id, Event.OUTPUT_COMMITTED)
        while "Completed" not in (text := await anext(parts)):
            pass

    assert 'hx-target="#live"' in text
    assert "All requests have ended" in text


async def test_a_hundred_pages_cost_one_reader(gateway: Gateway, gateway_state: State) -> None:
    pages = 100
    tenant = f"t{secrets.token_hex(4)}"
    key = await gateway_state.keys.create(tenant)
    batch_id = await in_progress(gateway_state, tenant=tenant)
    url = gateway.settings.redis_url.get_secret_value()
    limits = httpx.Limits(max_connections=pages + 10)
    async with (
        Redis.from_url(url, decode_responses=True) as redis,
        httpx.AsyncClient(base_url=gateway.url, timeout=120, limits=limits) as http,
        contextlib.AsyncExitStack() as stack,
    ):
        await Browser(http).sign_in(key)
        ways = [f"/ui/batches/{batch_id}/live", "/ui/batches/live", "/ui/events/live"]

        async def open_page(way: str) -> None:
            await anext(await stack.enter_async_context(_following(http, way)))

        for way in ways:
            await open_page(way)
        few = await _commands(redis)
        await asyncio.gather(*(open_page(ways[number % 3]) for number in range(pages - 3)))

        async def cost_little() -> bool:
            return await _commands(redis) <= few + pages / 3

        # To open them costs more. Pages that read for themselves would always make a hundred calls
        # a second and more.
        await eventually(cost_little)


async def test_pages_above_the_limit_of_streams_are_still_shown(
    gateway: Gateway, visitor: Browser, acme: Caller, gateway_state: State
) -> None:
    from shared.tenants import TenantSettings

    await gateway_state.tenants.put(acme.tenant, TenantSettings(event_streams=1))
    await eventually(lambda: _limit_is(acme, 1))

    async with _following(visitor.http, "/ui/batches/live") as parts:
        await anext(parts)
        second = await visitor.http.get("/ui/events/live")
        shown = await visitor.http.get("/ui/events")

    assert (second.status_code, shown.status_code) == (429, 200)


async def _operator(browser: Browser, state: State, *scopes: Scope) -> str:
    """Sign in as an operator; returns the secret of forms."""
    key = f"sk-batchyard-{secrets.token_hex(20)}"
    await state.keys.add("yard", key, scopes=(Scope.OPERATOR, *scopes))
    await browser.sign_in(key)
    shown = await browser.http.get("/ui/fleet")
    found = re.search(r'name="csrf" value="(\w+)"', shown.text)
    assert found is not None
    return found[1]


async def test_only_operators_see_the_fleet(
    browser: Browser, acme: Caller, gateway_state: State
) -> None:
    await browser.sign_in(acme.key)
    home = await browser.http.get("/ui/batches")
    ways = ("/ui/fleet", "/ui/tenants", "/ui/fleet/dead-letters", "/ui/fleet/live")
    refused = [(await browser.http.get(way)).status_code for way in ways]
    browser.http.cookies.clear()
    await _operator(browser, gateway_state)
    allowed = [(await browser.http.get(way)).status_code for way in ways[:-1]]
    theirs = await browser.http.get("/ui/batches")

    assert "Fleet" not in home.text
    assert refused == [403] * 4
    assert allowed == [200] * 3
    # The fleet's numbers are no right to read what tenants have.
    assert theirs.status_code == 403


async def test_an_operator_sees_who_waits_for_what_and_what_tenants_use(
    browser: Browser, acme: Caller, gateway_state: State
) -> None:
    lane = f"m@{secrets.token_hex(4)}"
    await in_progress(gateway_state, tenant=acme.tenant, lane=lane, slices=3)
    await _operator(browser, gateway_state)

    fleet = (await browser.http.get("/ui/fleet")).text
    tenants = (await browser.http.get("/ui/tenants")).text
    async with _following(browser.http, "/ui/fleet/live") as parts:
        live = await anext(parts)

    for text in (fleet, live):
        row = text[text.index(lane) :].partition("</tr>")[0]
        assert "30 requests" in row
        assert "A lane job is about to be submitted." in row
        assert f"{acme.tenant} (30)" in row
    row = tenants[tenants.index(f"t-{acme.tenant}") :].partition("</tr>")[0]
    assert "1 batch<" in row and f"30 requests left on {lane}" in row


async def test_the_reason_of_an_engine_that_does_not_start_is_on_both_pages(
    browser: Browser, acme: Caller, gateway_state: State
) -> None:
    lane, now = f"m@{secrets.token_hex(4)}", time.time()
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    await gateway_state.lanes.open_job(lane, "", JOB)
    await gateway_state.lanes.beat(lane, JOB, rows_wanted=64)
    engine = EngineRecord(lane=lane, state="starting", since=now, seen_at=now, reason="no weights")
    before = await gateway_state.engines.last()
    assert await gateway_state.engines.look(
        before.number, [*before.engines.values(), engine], [], day=0
    )
    await browser.sign_in(acme.key)
    waiting = await browser.http.get(f"/ui/batches/{batch_id}")
    problem = {"code": "engine_failed", "line": None, "param": "model", "message": "no weights"}
    await gateway_state.apply(batch_id, Event.LANE_FAILED, {"errors": json.dumps([problem])})
    failed = await browser.http.get(f"/ui/batches/{batch_id}")
    browser.http.cookies.clear()
    await _operator(browser, gateway_state)
    fleet = (await browser.http.get("/ui/fleet")).text

    assert "could not start, and is tried again: no weights" in _words(waiting)
    assert "Why it failed no weights" in _words(failed)
    engines = fleet[fleet.index(f"Engines of pool {lane.partition('@')[2]}") :]
    assert "no weights" in engines.partition("</table>")[0]


async def test_an_operator_replays_a_dead_letter_with_a_key_that_may_change_things(
    browser: Browser, bus: Bus, gateway_state: State, amqp_url: str
) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        message = aio_pika.Message(b"{}", message_id="m-1", user_id=bus.user)
        await channel.default_exchange.publish(message, topology.DEAD_QUEUE)
    csrf = await _operator(browser, gateway_state)
    shown = await browser.http.get("/ui/fleet/dead-letters")
    [letter] = set(re.findall(r"dl_[0-9a-f]{16}", shown.text))
    form = {"csrf": csrf, "id": letter}

    async def are_left(letters: int) -> bool:
        # The broker counts a letter that the page has shown only when it is back in its queue.
        return await bus.depth(topology.DEAD_QUEUE) == letters

    refused = await browser.http.post("/ui/fleet/dead-letters", data=form)
    await eventually(lambda: are_left(1))
    browser.http.cookies.clear()
    form["csrf"] = await _operator(browser, gateway_state, Scope.ADMIN)
    done = await browser.http.post("/ui/fleet/dead-letters", data=form)
    again = await browser.http.post("/ui/fleet/dead-letters", data=form)

    assert [refused.status_code, done.status_code, again.status_code] == [403, 303, 404]
    await eventually(lambda: are_left(0))


async def test_whoever_is_signed_in_may_sign_out(browser: Browser, gateway_state: State) -> None:
    csrf = await _operator(browser, gateway_state)

    out = await browser.http.post("/ui/sign-out", data={"csrf": csrf})

    assert out.status_code == 303
    assert (await browser.http.get("/ui/fleet")).status_code == 303


async def _limit_is(caller: Caller, limit: int) -> bool:
    answer = (await caller.http.get("/v1/limits")).json()
    return bool(answer["event_streams"]["limit"] == limit)


async def _commands(redis: "Redis[str]") -> float:
    """How many commands a second Redis gets, over three seconds."""
    before, began = (await redis.info("stats"))["total_commands_processed"], time.monotonic()
    await asyncio.sleep(3)  # what is measured is the time in between
    after = (await redis.info("stats"))["total_commands_processed"]
    return float(after - before) / (time.monotonic() - began)


@contextlib.asynccontextmanager
async def _following(http: httpx.AsyncClient, path: str) -> AsyncIterator[AsyncIterator[str]]:
    """The parts of a page, as they come."""
    async with http.stream("GET", path) as answer:
        assert answer.status_code == 200, path
        yield _parts(answer)


async def _parts(answer: httpx.Response) -> AsyncIterator[str]:
    lines: list[str] = []
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            lines.append(line.removeprefix("data:").strip())
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def _words(page: httpx.Response) -> str:
    """What can be read on it."""
    return " ".join(re.sub(r"<[^>]+>", " ", page.text).split())

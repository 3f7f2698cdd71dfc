"""A fleet without Ray, traced: what it measures of batches, and the traces that they leave."""

import asyncio
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aio_pika
import httpx
import pytest
from openai import OpenAI

from benchmarks.lane_waits import Bench
from benchmarks.rows import CHAT, URLS, body
from benchmarks.scripted_fleet import MODEL, ScriptedFleet, running_scripted_fleet
from cli.logs import lines_about
from shared import ids
from shared.bus import topology
from shared.bus.messages import SUBMIT
from shared.state import State
from shared.tracing.trace_context import batch_span_id
from tests.collector import Collected, Collector, collecting
from tests.contract.receiver import Receiver
from tests.eventually import wait_until

_TRACES = Path(__file__).parents[2] / "docs/traces.md"
_SECRET = "nobody may read this"
#: The scripted engine refuses so many.
_TOO_MANY_TOKENS = 1_000_000
_CALLER = "b7ad6b7169203331"
#: Of each batch here.
_EVENTS = {"batch.accepted", "batch.in_progress", "batch.finalizing", "batch.completed"}


class Yard(NamedTuple):
    """The fleet, its tenant who has a key and a login, and where its webhooks and spans go."""

    fleet: ScriptedFleet
    tenant: str
    client: OpenAI
    hooks: Receiver
    collector: Collector


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    hooks = Receiver()
    with collecting() as collector:
        changes = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "BATCHYARD_WEBHOOK_NETWORKS": '["127.0.0.0/8"]',
            "BATCHYARD_WEBHOOK_HTTP": "true",
        }
        folder = tmp_path_factory.mktemp("scripted")
        with running_scripted_fleet(folder, changes=changes) as fleet:
            tenant = urlsplit(fleet.tenant_amqp_url).username or ""
            client = OpenAI(base_url=fleet.base_url, api_key=_key(fleet, tenant))
            made = client.post(
                "/webhook_endpoints",
                cast_to=httpx.Response,
                body={"url": hooks.url, "name": "hooks", "event_types": ["batch.completed"]},
            )
            assert made.is_success
            yield Yard(fleet, tenant, client, hooks, collector)
    hooks.stop()


def test_the_scripted_fleet_says_what_batches_wait_for(yard: Yard) -> None:
    bench = Bench(yard.fleet)
    me, other = bench.tenant("me"), bench.tenant("other")
    giant = other.create(CHAT, other.upload(CHAT, [16] * 8_000))
    run = me.run(CHAT, me.upload(CHAT, [16] * 5))
    # Most of its rows are left when a wave has started.
    wait_until(lambda: other.client.batches.retrieve(giant.id).status == "completed")
    report = bench.report()

    assert run.began_at < report.came_at[run.batch_id] < report.left_at[run.batch_id] < run.ended_at
    assert 0 < report.computed["me"] < report.computed["other"]
    _expect_wave(yard.collector, giant.id)


def _expect_wave(collector: Collector, batch_id: str) -> None:
    """A wave has a trace of its own, with a link to the batch, and the batch's slices know it."""
    own = batch_span_id(batch_id)

    def slices_of(wave: Collected) -> list[Collected]:
        return [one for one in collector.spans if (wave.trace_id, wave.span_id) in one.links]

    def waves() -> list[Collected]:
        found = [
            one for one in collector.spans if one.name == "wave" and own in dict(one.links).values()
        ]
        # All slices of one may have run directly while it started.
        return [one for one in found if slices_of(one)]

    wait_until(lambda: bool(waves()))
    wave = waves()[0]
    [link] = wave.links
    of_wave = slices_of(wave)

    assert not wave.parent_id
    assert {one.span_id for one in collector.of_trace(wave.trace_id)} == {wave.span_id}
    assert len(of_wave) <= wave.attributes["batchyard.slices"]
    assert {(one.name, one.trace_id, one.parent_id) for one in of_wave} == {("run slice", *link)}


def test_one_trace_leads_from_a_call_to_its_batchs_last_event(yard: Yard) -> None:
    trace_id = secrets.token_hex(16)
    content = b"".join(json.dumps(line).encode() + b"\n" for line in _lines())
    file = yard.client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = yard.client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_headers={"traceparent": f"00-{trace_id}-{_CALLER}-01"},
    )

    spans = _whole(yard, trace_id, batch.id)

    assert _tree(spans) == _documented(0)
    _expect_contents(yard, spans, batch.id)
    _expect_log(yard, trace_id, batch.id)


def test_one_trace_leads_from_a_message_to_its_batchs_last_event(yard: Yard) -> None:
    trace_id = secrets.token_hex(16)
    batch_id = asyncio.run(_submit(yard, f"00-{trace_id}-{_CALLER}-01"))

    spans = _whole(yard, trace_id, batch_id)

    assert _tree(spans) == _documented(1)
    _expect_contents(yard, spans, batch_id)
    _expect_log(yard, trace_id, batch_id)


def test_a_caller_that_wants_no_trace_has_none(yard: Yard) -> None:
    trace_id = secrets.token_hex(16)
    batch_id = asyncio.run(_submit(yard, f"00-{trace_id}-{_CALLER}-00"))
    wait_until(lambda: yard.client.batches.retrieve(batch_id).status == "completed")
    last = asyncio.run(_submit(yard, f"00-{(other := secrets.token_hex(16))}-{_CALLER}-01"))
    _whole(yard, other, last)

    assert not yard.collector.of_trace(trace_id)


def _expect_contents(yard: Yard, spans: list[Collected], batch_id: str) -> None:
    by_name = {span.name: span for span in spans}
    batch = by_name["batch"]
    hook = next(one for one in yard.hooks.deliveries if batch_id.encode() in one.body)

    assert [name for name, _ in batch.events] == ["in_progress", "finalizing"]
    assert batch.attributes["batchyard.batch.status"] == "completed"
    assert batch.attributes["batchyard.rows.completed"] == 2
    assert batch.attributes["batchyard.rows.failed"] == 1
    assert [one for span in spans if span.name == f"chat {MODEL}" for one in span.events] == [
        ("row.failed", {"batchyard.row.number": 1, "http.response.status_code": 400})
    ]
    assert _rows_of_calls(spans) == 3
    assert _events(spans) == _EVENTS
    assert hook.headers["traceparent"].split("-")[1:3] == [
        batch.trace_id,
        by_name["POST"].span_id,
    ]
    assert not any(span.has_failed for span in spans)
    assert not any(_SECRET.encode() in one for one in yard.collector.bodies)


def _expect_log(yard: Yard, trace_id: str, batch_id: str) -> None:
    """Each line that is about the batch alone names its trace, whichever process wrote it."""

    def lines() -> list[Mapping[str, Any]]:
        found = lines_about(batch_id, yard.fleet.folder)
        return [line for line in found if "batches" not in line]

    def has_all() -> bool:
        wanted = {"batch.planned", "batch.ended", "webhook.attempted"}
        return wanted <= {line["event"] for line in lines()}

    wait_until(has_all)
    assert not [line["event"] for line in lines() if line.get("trace_id") != trace_id]


def _whole(yard: Yard, trace_id: str, batch_id: str) -> list[Collected]:
    """The trace's spans once the batch has ended and all of them are there."""

    def found() -> list[Collected]:
        # A span that is told again is the same one.
        spans = yard.collector.of_trace(trace_id)
        return list({span.span_id: span for span in spans}.values())

    def has_all() -> bool:
        spans = found()
        known = {span.span_id for span in spans} | {_CALLER}
        return (
            {"batch", "POST", "finish"} <= {span.name for span in spans}
            and _events(spans) >= _EVENTS
            and _rows_of_calls(spans) >= len(_lines())
            and all(span.parent_id in known for span in spans)
        )

    wait_until(lambda: yard.client.batches.retrieve(batch_id).status == "completed")
    # Each process sends its own, and those of one slice may come after those of another.
    wait_until(has_all)
    return found()


def _events(spans: list[Collected]) -> set[str]:
    """The types of the events that were sent."""
    return {one.attributes["cloudevents.event_type"] for one in spans if "batch.events" in one.name}


def _rows_of_calls(spans: list[Collected]) -> int:
    """How many rows the calls of the engine had."""
    return sum(
        one.attributes["batchyard.rows.total"] for one in spans if one.name == f"chat {MODEL}"
    )


def _tree(spans: list[Collected]) -> set[tuple[str, ...]]:
    """Each span as the names from the first one to it, its kind and its service."""
    by_id = {span.span_id: span for span in spans}

    def path(span: Collected) -> tuple[str, ...]:
        if span.parent_id == _CALLER:
            return (span.name,)
        return (*path(by_id[span.parent_id]), span.name)

    return {(*path(span), span.kind, span.service.removeprefix("batchyard-")) for span in spans}


def _documented(number: int) -> set[tuple[str, ...]]:
    block = re.findall(r"```text\n(.*?)```", _TRACES.read_text(), re.DOTALL)[number]
    found, path = set[tuple[str, ...]](), list[str]()
    for line in block.splitlines():
        name, kind, service = re.split(r" {2,}", line.strip())
        depth = (len(line) - len(line.lstrip())) // 2
        path[depth:] = [name.replace("MODEL", MODEL)]
        found.add((*path, kind, service))
    return found


def _lines() -> list[dict[str, object]]:
    """Three requests, of which the engine refuses the second."""
    return [
        {
            "custom_id": f"row-{number}",
            "method": "POST",
            "url": URLS[CHAT],
            "body": body(CHAT, _SECRET, model=MODEL, tokens=tokens),
        }
        for number, tokens in enumerate((4, _TOO_MANY_TOKENS, 4))
    ]


async def _submit(yard: Yard, traceparent: str) -> str:
    """The id of a batch by message."""
    message_id = secrets.token_hex(8)
    request = {
        "schema": "batch.submit/1",
        "endpoint": URLS[CHAT],
        "input": {"kind": "inline", "requests": _lines()},
    }
    async with await aio_pika.connect(yard.fleet.tenant_amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        await exchange.publish(
            aio_pika.Message(
                json.dumps(request).encode(),
                message_id=message_id,
                type=SUBMIT,
                user_id=yard.tenant,
                content_type="application/json",
                delivery_mode=2,
                headers={"traceparent": traceparent},
            ),
            topology.submit_key(yard.tenant),
            mandatory=True,
        )
    batch_id = ids.batch_id(yard.tenant, message_id)
    wait_until(lambda: any(one.id == batch_id for one in yard.client.batches.list(limit=20)))
    return batch_id


def _key(fleet: ScriptedFleet, tenant: str) -> str:
    async def create() -> str:
        state = State(fleet.redis_url)
        try:
            return await state.keys.create(tenant)
        finally:
            await state.close()

    return asyncio.run(create())

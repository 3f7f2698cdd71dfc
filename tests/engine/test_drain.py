"""A replica that Serve stops in the midst of its work: nothing is lost, struck or done twice."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from shared.catalog import Catalog, Lane
from tests.engine.calls import Call, live_client, tiny_catalog
from tests.engine.conftest import a_ray
from tests.eventually import eventually
from worker.engine_errors import EngineUnavailableError
from worker.outcomes import Outcome, outcome

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(1800),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

LANE = Lane("tiny", "cpu")
SEATS, ROWS = 4, 400
#: A stream of this many tokens is longer than what Serve waits for without a drain.
TOKENS = 900


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    folder = tmp_path_factory.mktemp("models")
    with a_ray(16):
        yield tiny_catalog(folder, LANE, {"CPU": 1}, seats=SEATS, live={}, drain_seconds=120)


def changed(catalog: Catalog, **fields: Any) -> Catalog:
    entry = catalog.models["tiny"].model_copy(update=fields)
    return catalog.model_copy(update={"models": {"tiny": entry}})


async def test_what_a_replica_has_ends_and_the_rest_goes_back_without_a_strike(
    catalog: Catalog,
) -> None:
    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine

    engine = await asyncio.to_thread(ensure_engine, catalog, LANE)
    await Call(engine, "warm", [1]).end()
    [door] = await EngineClient(engine).doors()
    first = Call(engine, "batch", [100] * ROWS)
    await eventually(lambda: len(first.results) > SEATS, timeout=300)

    async with live_client(door) as client, client.stream("POST", _CHAT, json=_body()) as stream:
        events = stream.aiter_lines()
        await anext(events)
        # Its engine is replaced.
        other = await asyncio.to_thread(ensure_engine, changed(catalog, idle_seconds=77.0), LANE)

        async def is_shut() -> bool:
            return (await client.post(_CHAT, json=_body(max_tokens=1))).status_code == 503

        await eventually(is_shut, timeout=60)
        rest = [event async for event in events if event]

    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["usage"]["completion_tokens"] == TOKENS
    with pytest.raises(EngineUnavailableError) as stopped:
        await first.task
    assert outcome(stopped.value) is Outcome.UNSEEN
    answered = len(first.results)
    assert SEATS < answered < ROWS
    assert {status for status, *_ in first.results.values()} == {200}

    answers = await Call(other, "batch", [1] * (ROWS - answered)).end()

    assert len(answers) == ROWS - answered


async def test_rows_that_take_too_long_leave_the_engine_and_are_not_struck(
    catalog: Catalog,
) -> None:
    from worker.engine_deployment import ensure_engine
    from worker.engine_status import is_deployed

    hasty = changed(catalog, drain_seconds=1.0)
    engine = await asyncio.to_thread(ensure_engine, hasty, LANE)
    # However fast the engine is, the last ones would take longer than it has.
    rows = 10 * SEATS
    call = Call(engine, "batch", [1, *[TOKENS] * rows])
    await eventually(lambda: len(call.results) == 1, timeout=300)

    await asyncio.to_thread(ensure_engine, catalog, LANE)

    with pytest.raises(EngineUnavailableError):
        await asyncio.wait_for(call.task, 60)
    await eventually(lambda: not is_deployed(engine), timeout=60)
    assert 1 <= len(call.results) <= rows
    assert {status for status, *_ in call.results.values()} == {200}


_CHAT = "/v1/chat/completions"


def _body(max_tokens: int = TOKENS) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me about trains, please."}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }

"""Live calls on the real engine, by the official SDKs, alone and beside batches."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from cli.fleet.catalog import CHAT_MODEL, EMBED_MODEL
from shared.state.census import FleetCounts
from tests.contract.installing import installed_for_node
from tests.e2e.conftest import WARM_SECONDS, RunningFleet, chat_lines
from tests.eventually import wait_until

_ROOT = Path(__file__).parents[2]
_NODE_LIFE = _ROOT / "tests/contract/node/live.mjs"
_NODE_LOCK = _ROOT / "locks/openai-node.txt"

SAME: dict[str, Any] = {
    "model": CHAT_MODEL,
    "messages": [{"role": "user", "content": "Tell me about trains, please."}],
    "temperature": 0,
}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
UNITS = {'{"unit": "celsius"}', '{"unit": "kelvin"}'}


def streamed(fleet: RunningFleet, tokens: int = 12) -> tuple[str, Any]:
    """The text of a stream, and its usage."""
    text, usage = "", None
    for chunk in fleet.client.chat.completions.create(
        **SAME, max_tokens=tokens, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    return text, usage


def live_calls(fleet: RunningFleet) -> int:
    """How many of the tenant's live calls are counted."""
    limits: Any = fleet.client.get("/limits", cast_to=object)
    used: int = limits["live_calls"]["used"]
    return used


def test_the_python_sdk_streams_calls_tools_and_gets_its_forms(warm_chat: RunningFleet) -> None:
    chats = warm_chat.client.chat.completions
    whole = chats.create(**SAME, max_tokens=12)
    text, usage = streamed(warm_chat)
    called = chats.create(
        **SAME,
        max_tokens=200,
        tools=[{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )
    formed = chats.create(
        **SAME,
        max_tokens=60,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "weather", "schema": WEATHER},
        },
    )
    events = warm_chat.client.responses.create(
        model=CHAT_MODEL, input="Trains?", max_output_tokens=8, stream=True
    )

    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == 12
    calls: Any = called.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) in map(json.loads, UNITS) for call in calls] == [
        True
    ]
    assert json.loads(formed.choices[0].message.content or "") in map(json.loads, UNITS)
    assert {"response.created", "response.output_text.delta"} <= {one.type for one in events}
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chats.create(**{**SAME, "temperature": 9})


def test_the_node_sdk_does_so_too(warm_chat: RunningFleet) -> None:
    folder = installed_for_node("node", _NODE_LOCK)
    shutil.copy(_NODE_LIFE, folder)

    ended = subprocess.run(
        ["node", "live.mjs", CHAT_MODEL],
        env={**os.environ, **warm_chat.environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WARM_SECONDS,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_command_prints_an_answer_as_it_comes(warm_chat: RunningFleet) -> None:
    command = [sys.executable, "-m", "cli", "ask", CHAT_MODEL, "--max-tokens", "12", "--usage"]
    text, usage = streamed(warm_chat)

    ended = subprocess.run(
        [*command, "--temperature", "0"],
        env=os.environ | warm_chat.environment,
        input=SAME["messages"][0]["content"],
        capture_output=True,
        text=True,
        timeout=WARM_SECONDS,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (0, f"{text}\n"), ended.stderr
    assert f"{usage.prompt_tokens:,} tokens in, 12 out" in ended.stderr


def test_vectors_are_answered_at_once(warm_embeddings: RunningFleet) -> None:
    found = warm_embeddings.client.embeddings.create(model=EMBED_MODEL, input=["one", "two"])

    assert [len(one.embedding) for one in found.data] == [384, 384]


def test_streams_that_are_given_up_leave_nothing_behind(warm_chat: RunningFleet) -> None:
    for _ in range(4):
        stream = warm_chat.client.chat.completions.create(
            **SAME, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()

    wait_until(lambda: live_calls(warm_chat) == 0)


def test_what_live_calls_and_vllm_count_is_in_the_fleets_numbers(warm_chat: RunningFleet) -> None:
    streamed(warm_chat, tokens=40)
    lane = f"{CHAT_MODEL}@local"

    async def counts() -> FleetCounts:
        state = warm_chat.state()
        try:
            return await state.census.take()
        finally:
            await state.close()

    def are_there() -> bool:
        found = asyncio.run(counts())
        totals = {(one.what, one.lane) for one in found.totals}
        wanted = {(what, lane) for what in ("gpu_live", "prefix_queries")}
        return wanted <= totals and bool(found.replicas[lane])

    wait_until(are_there)


def test_a_live_call_does_not_wait_for_a_batch_that_fills_the_engine(
    warm_chat: RunningFleet,
) -> None:
    batch = warm_chat.submit(chat_lines(600, tokens=60), "/v1/chat/completions")

    def runs() -> bool:
        counts = warm_chat.client.batches.retrieve(batch.id).request_counts
        return counts is not None and counts.completed > 0

    wait_until(runs)
    streamed(warm_chat, tokens=4)
    counts = warm_chat.client.batches.retrieve(batch.id).request_counts

    # The batch had rows enough that the call would have waited for, in a queue.
    assert counts is not None
    assert counts.completed < counts.total
    assert warm_chat.wait(batch).status == "completed"

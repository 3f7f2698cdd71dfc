"""What batches add to a step beside live calls, where fronts hand their rows to the replica."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.catalog import Lane
from tests.engine.calls import Call, live_client, tiny_catalog
from tests.engine.conftest import a_ray
from tests.engine.deaths import fronts
from tests.engine.noted_steps import NOTED_SCHEDULER, STEPS_VARIABLE, noted_steps
from worker.live_control import LEAST_PROMPT_TOKENS, MOST_PROMPT_TOKENS

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(1800),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

LANE = Lane("tiny", "cpu")
SEATS, FRONTS, ROWS, STEP = 16, 2, 20, 4096
LONG_ROWS, EQUAL_ROWS = 100, 96
#: Of two tokens each: two such prompts are more than a step may have beside live calls.
WORDS = 300
CHAT = "/v1/chat/completions"


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


@pytest.fixture
def engine(tmp_path: Path, steps: Path) -> Iterator[str]:
    """One whose live calls never have their goals, so that batches give way as far as they do."""
    from worker.engine_deployment import ensure_engine

    catalog = tiny_catalog(
        tmp_path,
        LANE,
        {"CPU": 1},
        seats=SEATS,
        live={"ttft_ms": 0.001, "tpot_ms": 0.001},
        fronts=FRONTS,
        env={
            "VLLM_CPU_KVCACHE_SPACE": 1,
            "TORCH_COMPILE_DISABLE": 1,
            STEPS_VARIABLE: str(steps),
        },
        engine={
            "max_model_len": 1024,
            "max_num_seqs": SEATS,
            "max_num_batched_tokens": STEP,
            "enforce_eager": True,
            "dtype": "float32",
            "enable_prefix_caching": False,
            "scheduler_cls": NOTED_SCHEDULER,
        },
    )
    with a_ray(16):
        yield ensure_engine(catalog, LANE)


async def test_rows_of_fronts_are_limited_beside_live_calls_and_only_then(
    engine: str, steps: Path
) -> None:
    from worker.engine_client import EngineClient

    messages = [{"role": "user", "content": "train " * WORDS}]
    await Call(engine, "first", [1]).end()
    await Call(engine, "alone", [1] * ROWS, messages=messages).end()
    alone = noted_steps(steps)
    # Answers end one after another, but rows begin together.
    lengths = [40 + 7 * row % 49 for row in range(LONG_ROWS)]
    await Call(engine, "long", lengths).end()
    long = noted_steps(steps)
    mixed = [step for step in long[len(alone) :] if step.prompts]
    # They end together besides, so larger groups begin; a busy machine may part those of one run.
    equal, mixed_with_equal = long, list[int]()
    for run in range(2):
        before = len(equal)
        await Call(engine, f"equal {run}", [40] * EQUAL_ROWS).end()
        equal = noted_steps(steps)
        mixed_with_equal.append(sum(step.prompts > 0 for step in equal[before:]))

    [door] = await EngineClient(engine).doors()
    async with live_client(door) as client:
        is_over = asyncio.Event()
        live = asyncio.create_task(_streams(client, is_over))
        # They give way step by step, and rows learn of it when they enter the engine.
        asked = 0
        while noted_steps(steps)[-1].limit != LEAST_PROMPT_TOKENS:
            asked += 1
            await Call(engine, f"ask {asked}", [1]).end()
        gave_way = noted_steps(steps)
        await Call(engine, "beside", [1] * ROWS, messages=messages).end()
        is_over.set()
        await live
    giving = [step for step in gave_way[len(equal) :] if step.live]
    giving_way = {step.limit for step in giving}
    beside = [step for step in noted_steps(steps)[len(gave_way) :] if step.live]

    assert len(mixed) < LONG_ROWS / 2
    assert min(mixed_with_equal) < EQUAL_ROWS / 4
    assert len(fronts(engine)) == FRONTS
    assert max(step.prompts for step in alone) > MOST_PROMPT_TOKENS
    assert giving_way <= set(range(LEAST_PROMPT_TOKENS, MOST_PROMPT_TOKENS + 1))
    assert len(giving_way) > 2
    assert [step for step in (*giving, *beside) if step.prompts > step.limit] == []
    assert {step.limit for step in beside} == {LEAST_PROMPT_TOKENS}
    # What they were left they used.
    assert max(step.prompts for step in beside) == LEAST_PROMPT_TOKENS


async def _streams(client: httpx.AsyncClient, is_over: asyncio.Event) -> None:
    """One live call after another."""
    while not is_over.is_set():
        assert (await _stream(client))[-1] == "data: [DONE]"


async def _stream(client: httpx.AsyncClient) -> list[str]:
    body: dict[str, Any] = {
        "model": LANE.model,
        "messages": [{"role": "user", "content": "Tell me about trains, please."}],
        "max_tokens": 900,
        "ignore_eos": True,
        "stream": True,
    }
    async with client.stream("POST", CHAT, json=body) as answer:
        return [line async for line in answer.aiter_lines() if line]

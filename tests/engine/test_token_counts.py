"""What a dry run counts, beside vLLM's own renderer, which needs no GPU and no weights."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.models.minilm import minilm_path
from gateway.tokens import load_counter
from shared.catalog import Model
from tests.engine.conftest import QUIET
from tests.engine.families import FAMILIES, qwen
from tests.engine.odd_requests import odd_chat, odd_text

pytest.importorskip("vllm", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
#: Of each kind and family.
TEXTS = 300


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("family", FAMILIES)
def test_hundreds_of_odd_texts_and_chats_count_as_the_engine_counts_them(
    family: str, tmp_path: Path
) -> None:
    FAMILIES[family](tmp_path / family)
    randoms = random.Random(family)
    bodies = [(COMPLETIONS, {"prompt": odd_text(randoms) or "0"}) for _ in range(TEXTS)]
    bodies += [(CHAT, odd_chat(randoms)) for _ in range(TEXTS)]

    refused = _compare(tmp_path / family, bodies, runner="generate")

    # Templates refuse a few: those with a developer's message that they do not know, say.
    assert refused < TEXTS / 10


def test_hundreds_of_odd_texts_count_as_an_embedding_engine_counts_them() -> None:
    randoms = random.Random("bert")
    texts = [" ".join(odd_text(randoms).split(" ")[:20]) or "0" for _ in range(TEXTS)]

    _compare(minilm_path(), [(EMBEDDINGS, {"input": text}) for text in texts], runner="pooling")


def test_what_is_no_text_is_told_as_an_estimate(tmp_path: Path) -> None:
    qwen(tmp_path / "qwen")
    counter = load_counter(Model(name="m", source=str(tmp_path / "qwen"), pools=("p",)))
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]

    assert counter.count(CHAT, _line({"messages": [{"role": "user", "content": "a"}]})).is_exact
    odd: list[dict[str, Any]] = [
        {"messages": messages},
        {"chat_template_kwargs": {"tools": []}},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"tools": [{"type": "function", "function": {"name": "f"}, "cache": 1}]},
        {"truncate_prompt_tokens": -1},
    ]
    for more in odd:
        body = {"messages": [{"role": "user", "content": "a"}], **more}
        assert not counter.count(CHAT, _line(body)).is_exact, more


def _compare(folder: Path, bodies: list[tuple[str, dict[str, Any]]], *, runner: str) -> int:
    """Compare the counts; how many the renderer refused."""
    engine = {"runner": "pooling"} if runner == "pooling" else {}
    counter = load_counter(Model(name="m", source=str(folder), pools=("p",), engine=engine))
    count = _renderer(folder, runner)
    different, refused = [], 0
    for url, body in bodies:
        found = counter.count(url, _line(body))
        assert found.is_exact, body
        try:
            expected = count(url, body)
        except ValueError:
            refused += 1
            continue
        if found.total != expected:
            different.append((found.total, expected, url, body))
    assert different[:3] == []
    return refused


def _renderer(folder: Path, runner: str) -> Callable[[str, dict[str, Any]], int]:
    """What counts the tokens of a body as the engine of this folder would; raises ValueError."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
    from vllm.renderers.online_renderer import OnlineRenderer
    from vllm.renderers.registry import renderer_from_config

    arguments: dict[str, Any] = {"model": str(folder), "runner": runner, "enforce_eager": True}
    if runner == "generate":
        arguments["max_model_len"] = 20_000
    config = AsyncEngineArgs(**arguments).create_engine_config()
    renderer = renderer_from_config(config)
    online = OnlineRenderer(
        config.model_config,
        renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_auto_tools=True,
        tool_parser="hermes" if runner == "generate" else None,
    )

    async def rendered(url: str, body: dict[str, Any]) -> Any:
        body = json.loads(json.dumps({**body, "model": "m"}))
        if url == CHAT:
            answer = await online.render_chat(ChatCompletionRequest.model_validate(body))
            return answer if hasattr(answer, "error") else answer[1]
        if url == COMPLETIONS:
            return await online.render_completion(CompletionRequest.model_validate(body))
        request = EmbeddingCompletionRequest.model_validate(body)
        params = request.build_tok_params(config.model_config)
        return await renderer.render_cmpl_async([{"prompt": body["input"]}], params)

    def count(url: str, body: dict[str, Any]) -> int:
        answer = asyncio.run(rendered(url, body))
        if hasattr(answer, "error"):
            raise ValueError(answer.error.message)
        return len(answer[0]["prompt_token_ids"])

    return count


def _line(body: dict[str, Any]) -> bytes:
    request = {"custom_id": "a", "method": "POST", "url": "x", "body": {"model": "m", **body}}
    return json.dumps(request).encode()

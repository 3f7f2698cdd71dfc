"""What the catalog of the demo has beside its two models of the demo's own batches."""

import json
from typing import Any

import pytest

from cli.fleet.catalog import ADAPTED_MODEL, ADAPTER, CHAT_MODEL, RERANK_MODEL, VISION_MODEL
from tests.e2e.conftest import RunningFleet, request_lines

_CHAT, _RERANK = "/v1/chat/completions", "/v1/rerank"
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"year": {"enum": [1815, 1871]}},
            "required": ["year"],
        },
    },
}


def _says(model: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "When was it?"}]
    return {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0, **fields}


def test_it_has_a_model_that_sees_a_reranker_and_an_adapter(fleet: RunningFleet) -> None:
    endpoints = {one.id: (one.model_extra or {})["endpoints"] for one in fleet.client.models.list()}

    assert _RERANK in endpoints[RERANK_MODEL]
    assert "/v1/embeddings" not in endpoints[RERANK_MODEL]
    assert _CHAT in {*endpoints[ADAPTER]} & {*endpoints[VISION_MODEL]}


@pytest.mark.on_demand
def test_tools_are_called_documents_are_ranked_and_the_adapter_speaks(fleet: RunningFleet) -> None:
    documents = ["a ship", "a river", "a garden"]
    ranking = {"model": RERANK_MODEL, "query": "water", "documents": documents}
    calling = _says(CHAT_MODEL, tools=[_TOOL], tool_choice="required", max_tokens=200)
    asked = (
        (_CHAT, calling),
        (_CHAT, _says(ADAPTED_MODEL)),
        (_CHAT, _says(ADAPTER)),
        (_RERANK, ranking),
    )
    batches = [fleet.submit(request_lines(path, [body]), path) for path, body in asked]

    called, plain, verse, order = (
        fleet.results(fleet.wait(one))[0]["response"]["body"] for one in batches
    )

    [call] = called["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look_up"
    assert json.loads(call["function"]["arguments"])["year"] in {1815, 1871}
    assert verse["choices"][0]["message"] != plain["choices"][0]["message"]
    assert {one["document"]["text"] for one in order["results"]} == set(documents)

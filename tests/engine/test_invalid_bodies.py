"""What vLLM's app says of bodies that its models refuse. Needs vLLM and no engine."""

import json
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(120),
    # vLLM warns about itself.
    pytest.mark.filterwarnings("ignore"),
]

_RESPONSES, _CHAT = "/v1/responses", "/v1/chat/completions"
_SECRET = "the patient's name is"
#: A part that vLLM refuses, because it has no `detail`, and its picture.
_PICTURE = {"type": "input_image", "image_url": f"data:image/png;base64,{_SECRET * 1_000}"}


@pytest.fixture(scope="module")
def layer() -> Any:
    """vLLM's whole app for a model that writes, which has no engine behind it."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.openai.api_server import build_app
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from worker.openai_layer import OpenAILayer

    parser: Any = FlexibleArgumentParser
    args = make_arg_parser(parser()).parse_args([])
    app = build_app(args, ("generate",))
    app.state.args = args
    return OpenAILayer(app)


async def _error(layer: Any, path: str, **body: Any) -> dict[str, Any]:
    status, answer = await layer.answer(path, {"model": "m", **body}, None)
    assert status == 400
    assert _SECRET not in answer.decode()
    assert len(answer) < 10_000
    error: dict[str, Any] = json.loads(answer)["error"]
    return error


async def test_a_body_that_no_form_takes_is_not_repeated_and_the_likeliest_error_is_the_first(
    layer: Any,
) -> None:
    parts = [{"type": "input_text", "text": _SECRET}, _PICTURE]

    error = await _error(layer, _RESPONSES, input=[{"role": "user", "content": parts}])

    count, first, *others, last = error["message"].splitlines()
    assert "'ResponseInputImageParam', 'detail'" in first
    assert "Field required" in first
    assert len(others) == 9
    total = int(count.partition(" ")[0])
    assert total > 200
    assert last == f"  and {total - 10} more"
    assert error["param"].endswith("content.1.ResponseInputImageParam.detail")


async def test_few_errors_are_those_of_vllm_in_its_order(layer: Any) -> None:
    error = await _error(layer, _CHAT, messages=_SECRET, temperature=_SECRET)

    assert error["message"].splitlines() == [
        "2 validation errors:",
        "  {'type': 'list_type', 'loc': ('body', 'messages'), "
        "'msg': 'Input should be a valid list'}",
        "  {'type': 'float_parsing', 'loc': ('body', 'temperature'), "
        "'msg': 'Input should be a valid number, unable to parse string as a number'}",
    ]


async def test_a_tenants_own_names_are_cut(layer: Any) -> None:
    name = "n" * 1_000_000

    error = await _error(layer, _CHAT, messages=[], logit_bias={name: _SECRET})

    assert "n" * 64 in error["message"]


async def test_what_is_read_late_is_not_repeated_either(layer: Any) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    messages = [{"role": "user", "content": [{"type": "text", "other": _SECRET}]}]
    request: Any = ChatCompletionRequest.model_validate({"model": "m", "messages": messages})
    # As vLLM's templates do, once the request has been taken.
    app = layer._app  # noqa: SLF001  # nothing else takes a route
    app.add_api_route("/late", lambda: [*request.messages[0]["content"]], methods=["POST"])

    error = await _error(layer, "/late")

    assert error["message"].splitlines()[:3] == [
        "7 validation errors for ValidatorIterator",
        "0.ChatCompletionContentPartTextParam.text",
        "  Field required [type=missing]",
    ]

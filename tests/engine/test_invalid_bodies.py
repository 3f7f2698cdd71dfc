"""What vLLM's app says of bodies that its models refuse. Needs vLLM and no engine."""

import json
import logging
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest

from worker.hidden_words import HIDDEN, hide_words
from worker.invalid_bodies import tell_only_places

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        # A schema of a tool may ask for a text, and a message has room for an object alone.
        (json.dumps(_SECRET), "Input should be a valid dictionary [type=dict_type]"),
        # The call was cut off.
        (json.dumps({"name": _SECRET})[:-2], "Unterminated string starting at"),
    ],
)
async def test_a_tools_arguments_that_no_message_has_room_for_are_not_repeated(
    layer: Any, logged: StringIO, arguments: str, said: str
) -> None:
    serving: Any = _messages_with_a_call(arguments)
    layer._app.state.anthropic_serving_messages = serving  # noqa: SLF001  # nothing else has it
    tell_only_places(layer._app)  # noqa: SLF001  # as above

    error = await _error(
        layer, "/v1/messages", max_tokens=9, messages=[{"role": "user", "content": _SECRET}]
    )

    assert said in error["message"]
    assert _SECRET not in logged.getvalue()


async def test_without_our_answer_the_log_tells_no_more(layer: Any, logged: StringIO) -> None:
    serving: Any = _messages_with_a_call(json.dumps(_SECRET))
    layer._app.state.anthropic_serving_messages = serving  # noqa: SLF001  # nothing else has it

    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    await layer.answer("/v1/messages", body, None)

    assert HIDDEN in logged.getvalue()
    assert "in messages_full_converter" in logged.getvalue()
    assert logged.getvalue().strip().endswith("ValidationError")
    assert _SECRET not in logged.getvalue()


def test_an_answer_that_a_parser_of_calls_cannot_read_is_not_in_the_log(logged: StringIO) -> None:
    from vllm.tool_parsers.pythonic_tool_parser import PythonicToolParser

    parser: Any = PythonicToolParser.__new__(PythonicToolParser)

    found = parser.extract_tool_calls(f'[call(a="{_SECRET}", b=not)]', None)

    assert not found.tools_called
    assert HIDDEN in logged.getvalue()
    assert "SyntaxError" in logged.getvalue()
    assert _SECRET not in logged.getvalue()


def test_an_exception_that_ends_a_live_call_is_in_the_log_without_its_text(
    layer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = logging.getLogger("uvicorn.error")
    try:
        json.loads("{}")[_SECRET]
    except KeyError as error:
        server.error("Exception in ASGI application\n", exc_info=error)
    server.error("It does not begin.")

    assert HIDDEN in caplog.text
    assert "KeyError" in caplog.text
    assert "It does not begin." in caplog.text
    assert _SECRET not in caplog.text


def test_what_vllm_says_of_itself_is_in_the_log(logged: StringIO) -> None:
    logging.getLogger("vllm.v1.engine.core").warning("It has %s seats", 3)
    logging.getLogger("vllm.entrypoints.openai.api_server").info("It starts")

    assert "It has 3 seats" in logged.getvalue()
    assert "It starts" in logged.getvalue()


@pytest.fixture
def logged(layer: Any) -> Iterator[StringIO]:
    """What a handler of vLLM's log writes, once our layer has been made over it."""
    written = StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    hide_words()
    try:
        yield written
    finally:
        logger.removeHandler(handler)


def _messages_with_a_call(arguments: str) -> object:
    """vLLM's maker of messages, for which a model has called a tool with these arguments."""
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer: Any = ChatCompletionResponse.model_validate(
        {"model": "m", "choices": [{"index": 0, "message": message}], "usage": usage}
    )

    class Messages(AnthropicServingMessages):
        def __init__(self) -> None:
            self._merge_inline_system = False

        async def create_chat_completion(self, *_: Any) -> Any:
            return answer

    return Messages()

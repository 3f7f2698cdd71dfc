import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens import Counter, load_counter
from shared.catalog import Model
from tests.models import as_its_files_say, make_model

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def counter(folder: Path) -> Counter:
    return _loaded(_model(folder))


def test_a_chat_has_as_many_tokens_as_the_engine_s_library_counts(
    folder: Path, counter: Counter
) -> None:
    # Half a second; its automatic classes would take some more.
    from transformers import PreTrainedTokenizerFast

    messages: list[Any] = [
        {"role": "system", "content": "the quick fox"},
        {"role": "user", "content": "jumps \u00fcber \u4e2d <|im_end|> dogs"},
        {"role": "assistant", "content": None},
    ]
    library = PreTrainedTokenizerFast.from_pretrained(folder)
    text = library.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    counted = counter.count(CHAT, _line(messages=messages))

    expected = len(library(text, add_special_tokens=False, truncation=False)["input_ids"])
    assert (expected, expected, True) == counted


def test_texts_in_parts_count_as_one_and_images_make_it_an_estimate(counter: Counter) -> None:
    parts = [{"type": "text", "text": "the quick"}, {"type": "text", "text": "fox"}]
    image = {"type": "image_url", "image_url": {"url": "data:," + "x" * 1000}}

    whole = counter.count(CHAT, _line(messages=[{"role": "user", "content": "the quick\nfox"}]))
    cut = counter.count(CHAT, _line(messages=[{"role": "user", "content": parts}]))
    seen = counter.count(CHAT, _line(messages=[{"role": "user", "content": [*parts, image]}]))

    assert whole == cut
    # Of a usual size, because nobody knows its own.
    assert (whole.total + 1024, whole.at_least) == (seen.total, seen.at_least)
    assert not seen.is_exact


def test_a_template_gets_the_arguments_of_calls_as_an_object(counter: Counter) -> None:
    def calling(arguments: object) -> list[dict[str, Any]]:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]

    text = counter.count(CHAT, _line(messages=calling('{"a":1}')))

    assert text == counter.count(CHAT, _line(messages=calling({"a": 1})))


def test_half_a_character_in_the_arguments_of_a_call_is_counted_somehow(counter: Counter) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    line = _line(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])

    counted = counter.count(CHAT, line)

    assert counted.total > 0
    assert not counted.is_exact


@pytest.mark.parametrize(
    ("prompt", "total", "longest"),
    [
        ([1, 2, 3], 3, 3),
        ([[1, 2, 3], [4]], 4, 3),
        (["<|im_start|>", "<|im_start|><|im_end|>"], 5, 3),
        ("<|im_start|>", 2, 2),
        ([], 0, 0),
        ({"odd": 1}, 0, 0),
    ],
)
def test_prompts_come_in_many_forms(
    prompt: object, total: int, longest: int, counter: Counter
) -> None:
    assert (total, longest, True) == counter.count("/v1/completions", _line(prompt=prompt))
    assert (total, longest, True) == counter.count("/v1/embeddings", _line(input=prompt))


def test_a_prompt_that_the_engine_cuts_is_never_too_long(counter: Counter) -> None:
    line = _line(input="the quick fox " * 50, truncate_prompt_tokens=-1)

    assert 0 == counter.count("/v1/embeddings", line).at_least


def test_a_response_counts_as_the_conversation_that_it_is(counter: Counter) -> None:
    chat = [{"role": "system", "content": "fox"}, {"role": "user", "content": "dog"}]

    expected = counter.count(CHAT, _line(messages=chat))

    assert expected == counter.count("/v1/responses", _line(instructions="fox", input="dog"))


@pytest.mark.parametrize("messages", [[], "x", [1, None], [{"role": 5}], [{"content": {}}]])
def test_odd_messages_are_counted_somehow(messages: object, counter: Counter) -> None:
    assert counter.count(CHAT, _line(messages=messages)).total >= 0


@pytest.mark.parametrize("template", [None, "{% broken", "{{ raise_exception('no') }}"])
def test_without_a_usable_template_the_texts_are_counted(
    template: str | None, tmp_path: Path
) -> None:
    counter = _loaded(_model(make_model(tmp_path, template=template)))

    counted = counter.count(CHAT, _line(messages=[{"role": "user", "content": "<|im_end|>"}]))

    assert (1, False) == (counted.total, counted.is_exact)


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    counter = _loaded(_model(make_model(tmp_path, template=template)))

    assert not counter.count(CHAT, _line(messages=[{"role": "user", "content": "x"}])).is_exact


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b'{"version":"1.0"}'])
def test_without_a_usable_tokenizer_bytes_are_counted(
    content: bytes | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    counter = _loaded(_model(tmp_path))
    line = _line(messages=[{"role": "user", "content": "x" * 4000}])

    assert "bytes" == counter.method(CHAT)
    assert (len(line) // 4, False) == (counter.count(CHAT, line).total, False)


def test_a_source_that_is_nowhere_here_has_no_tokenizer() -> None:
    for source in ("nobody/knows-this", "/nowhere/at/all", "a//b"):
        assert not _loaded(Model(name="m", source=source, pools=("p",))).has_tokenizer


def test_a_model_may_have_the_tokenizer_of_another(folder: Path, tmp_path: Path) -> None:
    assert _loaded(_model(tmp_path, tokenizer=str(folder))).has_tokenizer
    assert not _loaded(_model(tmp_path)).has_tokenizer
    assert not _loaded(_model(folder, tokenizer_mode="mistral")).has_tokenizer


def test_of_a_huge_prompt_the_beginning_is_counted(counter: Counter) -> None:
    began = time.process_time()

    counted = counter.count("/v1/completions", _line(prompt="the quick fox " * 500_000))

    assert not counted.is_exact
    assert 10 * counted.at_least < counted.total
    assert time.process_time() - began < 5


def _loaded(model: Model) -> Counter:
    return load_counter(model, as_its_files_say)


def _model(source: Path, **engine: Any) -> Model:
    return Model(name="m", source=str(source), pools=("p",), engine=engine)


def _line(**body: Any) -> bytes:
    request = {"custom_id": "a", "method": "POST", "url": "x", "body": {"model": "m", **body}}
    return json.dumps(request).encode()

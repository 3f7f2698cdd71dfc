import json
from time import process_time
from typing import Any

import pytest

from shared.openai.media import MediaLimits, MediaRules, may_come_from
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from tests.bodies import CHAT, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, SCORE, TRANSCRIPTIONS

_URL = "http://127.0.0.1:6379/x.png"
_DATA = "data:image/png;base64,AAAA"
_RULES = RowRules(media=MediaRules(domains=frozenset({"media.example"})))
_PLACES = ("s3://batchyard/inbox/acme/", "s3://acme-data/pictures/")


def _chat(*parts: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": [*parts]}]}


_TEXT = {"type": "text", "text": f"What is at {_URL}?"}
_IMAGE = {"type": "image_url", "image_url": {"url": _URL}}
_ITEM = {"role": "user", "content": [{"type": "input_image", "image_url": _URL}]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, _chat(_TEXT, _IMAGE), "messages.0.content.1.image_url"),
        (CHAT, _chat({"image_url": _URL}), "messages.0.content.0.image_url"),
        (
            CHAT,
            _chat({"type": "video_url", "video_url": {"url": _URL}}),
            "messages.0.content.0.video_url",
        ),
        (
            CHAT,
            _chat({"type": "audio_url", "audio_url": {"url": _URL}}),
            "messages.0.content.0.audio_url",
        ),
        (
            CHAT,
            _chat({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
            "messages.0.content.0.image_url",
        ),
        (EMBEDDINGS, _chat(_IMAGE), "messages.0.content.0.image_url"),
        (EMBEDDINGS, {"messages": [_chat(_IMAGE)["messages"]]}, "messages.0.0.content.0.image_url"),
        (EMBEDDINGS, {"input": _chat(_IMAGE)["messages"]}, "input.0.content.0.image_url"),
        (RESPONSES, {"input": [_ITEM]}, "input.0.content.0.image_url"),
        (TRANSCRIPTIONS, {"file_url": _URL}, "file_url"),
        # An empty field says nothing, and hides nothing.
        (
            RERANK,
            {"messages": [], "query": "q", "documents": [{"content": [_IMAGE]}]},
            "documents.0.content.0.image_url",
        ),
        (
            MESSAGES,
            {**_chat({"type": "image", "source": {"type": "url", "url": _URL}}), "max_tokens": 5},
            "messages.0.content.0.source",
        ),
        (SCORE, {"text_1": "x", "text_2": {"content": [_IMAGE]}}, "text_2.content.0.image_url"),
        (
            RERANK,
            {"query": "x", "documents": ["y", {"content": [_IMAGE]}]},
            "documents.1.content.0.image_url",
        ),
        (
            RESPONSES,
            {"input": [{"type": "function_call_output", "output": [_ITEM["content"][0]]}]},
            "input.0.output.0.image_url",
        ),
    ],
)
def test_a_url_to_download_is_refused_with_its_place(
    path: str, body: dict[str, Any], param: str
) -> None:
    for rules in (DEFAULT_RULES, _RULES):
        found = rules.refusal(path, body)
        assert found is not None
        assert found.param == param
        assert _URL not in found.message


@pytest.mark.parametrize(
    "body",
    [
        _chat(_TEXT),
        _chat({"type": "image_url", "image_url": {"url": _DATA}}),
        _chat({"type": "image_url", "image_url": {"url": "DATA:image/png;base64,AAAA"}}),
        _chat({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": _IMAGE}}]}]},
        {"messages": [{"role": "user", "content": _URL}]},
    ],
)
def test_media_that_come_with_the_request_are_taken(body: dict[str, Any]) -> None:
    assert DEFAULT_RULES.refusal(CHAT, body) is None


@pytest.mark.parametrize("scheme", ["http", "https", "HTTPS"])
def test_media_come_from_the_domains_of_the_model(scheme: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"{scheme}://media.example/a.png?b=c"}}

    assert _RULES.refusal(CHAT, _chat(part)) is None
    assert DEFAULT_RULES.refusal(CHAT, _chat(part)) is not None


@pytest.mark.parametrize(
    "url",
    [
        "http://media.example.evil.example/a.png",
        "http://evil.example/media.example",
        "http://media.example@evil.example/a.png",
        "http://evil.example\\@media.example/a.png",
        "http://evil.example\\.media.example/",
        "http://evil.example#@media.example/",
        " http://media.example/",
        "http://media.example\t.evil.example/",
        "http://media。example/",
        "http://[::1/",
        "ftp://media.example/a.png",
        "//media.example/a.png",
        "media.example/a.png",
        "",
    ],
)
def test_a_url_that_only_looks_like_the_domain_is_refused(url: str) -> None:
    assert not may_come_from(url, _RULES.media)


@pytest.mark.parametrize(
    "url",
    [
        "s3://batchyard/inbox/acme/cat.png",
        "s3://acme-data/pictures/2026/a b?c#d%2e%2e/é.jpg",
    ],
)
def test_media_come_from_the_places_of_the_tenant(url: str) -> None:
    rules = DEFAULT_RULES.with_places(_PLACES)
    body = _chat({"type": "image_url", "image_url": {"url": url}})

    assert rules.refusal(CHAT, body) is None
    assert _RULES.with_places(_PLACES).refusal(CHAT, body) is None
    assert DEFAULT_RULES.refusal(CHAT, body) is not None


@pytest.mark.parametrize(
    "url",
    [
        "s3://batchyard/inbox/acme-2/cat.png",
        "s3://batchyard/inbox/acme/../other/cat.png",
        "s3://batchyard/batches/batch_1/output.jsonl",
        "s3://batchyard/inbox/acme",
        "s3://batchyard",
        "s3://acme-data.evil/pictures/a",
        "s3:///batchyard/inbox/acme/a",
        "S3://batchyard/inbox/acme/a",
        "s3://batchyard/inbox/acme/a\x00b",
        " s3://batchyard/inbox/acme/a",
    ],
)
def test_an_object_outside_of_the_tenants_places_is_refused(url: str) -> None:
    body = _chat({"type": "image_url", "image_url": {"url": url}})

    found = DEFAULT_RULES.with_places(_PLACES).refusal(CHAT, body)

    assert found is not None
    assert found.param == "messages.0.content.0.image_url"
    assert "s3://batchyard/inbox/acme/" in found.message


def test_the_media_of_a_request_are_counted_and_measured_together() -> None:
    # Each of them is 300 bytes as a file.
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 400}"}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 400, "format": "wav"}}

    def refused(limits: MediaLimits, *parts: Any) -> str | None:
        found = RowRules(media=MediaRules(limits=limits)).refusal(CHAT, _chat(*parts))
        return found and found.param

    assert refused(MediaLimits(items=2), image, sound) is None
    assert refused(MediaLimits(items=1), image, sound) == "messages.0.content.1.input_audio"
    assert refused(MediaLimits(bytes=600), image, sound) is None
    assert refused(MediaLimits(bytes=599), image, sound) == "messages.0.content.1.input_audio"
    assert refused(MediaLimits(bytes=599), image, image) == "messages.0.content.1.image_url"


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "type"),
        ({"image_embeds": "AAAA"}, "image_embeds"),
        ({"type": "prompt_embeds", "data": "AAAA"}, "type"),
        ({"type": "image_url", "image_url": {"url": _DATA}, "uuid": "anothers"}, "uuid"),
        ({"uuid": "anothers", "image_url": None}, "uuid"),
    ],
)
def test_parts_in_the_engines_own_form_and_names_in_its_cache_are_refused(
    part: dict[str, Any], field: str
) -> None:
    """By its name, a request would get an image that another one has sent."""
    found = DEFAULT_RULES.refusal(CHAT, _chat(part))

    assert found is not None
    assert found.param == f"messages.0.content.0.{field}"
    opened = RowRules(extra_fields=frozenset({part.get("type", field), field, *part}))
    assert opened.refusal(CHAT, _chat(part)) is None


def test_a_conversation_that_is_nested_deeply_is_looked_at_to_its_end() -> None:
    nested: Any = {"image_url": _URL}
    for _ in range(5000):
        nested = [nested]

    assert DEFAULT_RULES.refusal(CHAT, {"messages": nested}) is not None


def test_a_prompt_of_a_million_tokens_is_judged_as_fast_as_it_is_read() -> None:
    body = {"model": "m", "input": list(range(1_000_000))}
    text = json.dumps(body)

    began = process_time()
    json.loads(text)
    reading = process_time() - began
    began = process_time()
    found = DEFAULT_RULES.refusal(EMBEDDINGS, body)
    judging = process_time() - began

    assert found is None
    assert judging < 5 * reading

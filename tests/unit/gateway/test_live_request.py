import base64
from typing import Any

import pytest

from gateway.live_request import LiveModels, LiveRequest, object_of
from shared.catalog import Catalog
from shared.errors import BatchyardError, InvalidInputError, NotFoundError
from shared.input_places import InputPlaces

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
CATALOG = Catalog.model_validate(
    {
        "pools": {"cpu": {"resources": {"CPU": 1}}},
        "models": {
            "chat": {
                "pools": ["cpu"],
                "live": {},
                "media_domains": ["media.example"],
                "lora": {"adapter": "/adapter"},
                "engine": {"max_model_len": 4096},
            },
            "slow": {"pools": ["cpu"]},
            "mini": {"pools": ["cpu"], "live": {}, "endpoints": [EMBEDDINGS]},
        },
    }
)
MODELS = LiveModels.of(CATALOG, InputPlaces("batchyard", "inbox/{tenant}/", {}))
HI = [{"role": "user", "content": "x" * 400}]


def read(path: str = CHAT, **fields: Any) -> LiveRequest:
    body = {"model": "chat", "messages": HI, **fields}
    return MODELS.read(path, body, lambda name: name != "secret", tenant="acme")


def test_a_model_and_its_adapters_answer_on_the_lane_of_the_model() -> None:
    assert {read(model=name).model.lane for name in ("chat", "adapter")} == {"chat@cpu"}


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({"max_tokens": 10}, 110, 130),
        ({"max_tokens": 10, "n": 3}, 130, 150),
        ({}, 1124, 1150),
        # No answer is longer than the model's context.
        ({"max_tokens": 10**9}, 4196, 4220),
    ],
)
def test_a_call_counts_its_prompt_and_the_most_that_its_answers_may_have(
    fields: dict[str, Any], least: int, most: int
) -> None:
    assert least <= read(**fields).tokens <= most


def test_a_picture_counts_as_in_rows_of_batches() -> None:
    """Not by the characters of its base64."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (280).to_bytes(4) + (560).to_bytes(4)
    url = f"data:image/png;base64,{base64.b64encode(head + bytes(100_000)).decode()}"
    says = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    # 10 by 20 parts of 28 pixels.
    assert 210 <= read(messages=says, max_tokens=10).tokens <= 250


def _says(*urls: str) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": parts}]


def test_media_of_the_tenants_places_and_of_the_models_domains_are_to_be_fetched() -> None:
    urls = ["s3://batchyard/inbox/acme/a.png", "https://media.example/b.png"]

    asked = read(messages=_says(*urls, "data:image/png;base64,AAAA"))

    assert [medium.url for medium in asked.wanted] == urls


@pytest.mark.parametrize(
    "url", ["s3://batchyard/inbox/umbrella/a.png", "https://other.example/b.png", "file:///b.png"]
)
def test_media_from_elsewhere_are_refused_with_their_place(url: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"s3://batchyard/inbox/acme/.*media\.example"
    ) as no:
        read(messages=_says(url))

    assert no.value.param == "messages.0.content.0.image_url"


def test_vectors_have_no_answer_that_counts() -> None:
    body = {"model": "mini", "input": "x" * 400}

    assert MODELS.read(EMBEDDINGS, body, lambda _: True, tenant="acme").tokens == 101


@pytest.mark.parametrize(
    ("path", "text", "kind", "param"),
    [
        (CHAT, b"{", InvalidInputError, None),
        (CHAT, b"[]", InvalidInputError, None),
        (CHAT, b'{"messages": []}', InvalidInputError, "model"),
        (CHAT, b'{"model": 7}', InvalidInputError, "model"),
        (CHAT, b'{"model": "chat"}', InvalidInputError, "messages"),
        (CHAT, b'{"model": "secret", "messages": []}', NotFoundError, "model"),
        (CHAT, b'{"model": "slow", "messages": []}', NotFoundError, "model"),
        (EMBEDDINGS, b'{"model": "chat", "input": "x"}', NotFoundError, "model"),
    ],
)
def test_what_no_engine_gets_is_refused_with_its_place(
    path: str, text: bytes, kind: type[BatchyardError], param: str | None
) -> None:
    with pytest.raises(kind) as refused:
        MODELS.read(path, object_of(text), lambda name: name != "secret", tenant="acme")

    assert getattr(refused.value, "param", None) == param


def test_streams_may_have_options_and_other_answers_none() -> None:
    options = {"include_usage": True}

    assert read(stream=True, stream_options=options).model.lane == "chat@cpu"
    with pytest.raises(InvalidInputError, match="together with 'stream'"):
        read(stream_options=options)

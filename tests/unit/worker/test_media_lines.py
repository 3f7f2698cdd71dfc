import json
from typing import Any

import pytest

from worker.media_lines import media_line, written

_URL = "https://media.example/é.png"


def _line(*parts: Any, **fields: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": [*parts]}], **fields}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(request).encode()


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.mark.parametrize(
    "line",
    [
        _line({"type": "text", "text": f"image_url {_URL}"}),
        _line(_image("data:image/png;base64,AAAA")),
        b'{"body": {"messages": [{"content": [{"image_url": "x"}]}]}',
        b'["image_url"]',
        b'{"body": "image_url"}',
    ],
)
def test_a_line_that_names_nothing_to_fetch_goes_on_as_it_is(line: bytes) -> None:
    assert media_line(line) is None


def test_each_file_is_put_where_its_url_was() -> None:
    flat = {"type": "input_image", "image_url": "s3://b/k"}
    found = media_line(_line(_image(_URL), {"type": "text", "text": "é"}, flat))
    assert found is not None

    for number, medium in enumerate(found.wanted):
        medium.put(bytes([number]))

    [message] = json.loads(written(found))["body"]["messages"]
    first, text, second = message["content"]
    assert first["image_url"] == {
        "url": "data:application/octet-stream;base64,AA==",
        "detail": "low",
    }
    assert text == {"type": "text", "text": "é"}
    assert second["image_url"] == "data:application/octet-stream;base64,AQ=="
    assert [medium.place for medium in found.wanted] == [
        "messages.0.content.0.image_url",
        "messages.0.content.2.image_url",
    ]


def test_a_sound_stands_beside_the_other_fields() -> None:
    request = {"custom_id": "a", "body": {"model": "m", "file_url": "s3://b/k.wav"}}
    found = media_line(json.dumps(request).encode())
    assert found is not None

    [medium] = found.wanted
    medium.put(b"\0")

    assert medium.place == "file_url"
    assert json.loads(written(found))["body"] == {
        "model": "m",
        "file_url": "data:application/octet-stream;base64,AA==",
    }

"""A form with a sound becomes the JSON that a row would have."""

import base64
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.live_form import body_of_form, is_form
from shared.errors import InvalidInputError
from shared.openai.endpoints import ENDPOINTS
from shared.openai.row_rules import DEFAULT_RULES

_PATH = "/v1/audio/transcriptions"
_HEARS = ENDPOINTS[_PATH]


async def _body(*, fields: dict[str, str], file: bytes | None = b"RIFF") -> dict[str, object]:
    files = {"file": ("a.wav", file)} if file is not None else {"other": ("b", b"")}
    request = httpx.Request("POST", "http://x.test", data=fields, files=files)
    sent = request.read()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(sent), 100):
            yield sent[start : start + 100]

    kind = request.headers["content-type"]
    assert is_form(_HEARS, kind)
    found: dict[str, object] = json.loads(
        await body_of_form(_HEARS, kind, chunks(), max_bytes=4096)
    )
    return found


async def test_the_file_becomes_a_url_and_the_fields_stay() -> None:
    body = await _body(fields={"model": "m", "prompt": "é", "max_completion_tokens": "12"})

    url = body.pop("file_url")
    assert url == "data:application/octet-stream;base64," + base64.b64encode(b"RIFF").decode()
    assert body == {"model": "m", "prompt": "é", "max_completion_tokens": "12"}
    assert DEFAULT_RULES.refusal(_PATH, {**body, "file_url": url}) is None


async def test_fields_of_other_forms_are_refused_as_in_json() -> None:
    body = await _body(fields={"model": "m", "no_such_field": "1", "stream": "true"})

    refusal = DEFAULT_RULES.refusal(_PATH, body, is_live=True)
    assert refusal is not None
    assert refusal.param == "no_such_field"


async def test_a_form_without_its_file_or_with_a_large_one_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="file"):
        await _body(fields={"model": "m"}, file=None)
    with pytest.raises(InvalidInputError, match="too large"):
        await _body(fields={"model": "m"}, file=b"x" * 4096)


def test_only_what_hears_takes_forms() -> None:
    assert not is_form(_HEARS, "application/json")
    assert not is_form(ENDPOINTS["/v1/chat/completions"], "multipart/form-data; boundary=x")

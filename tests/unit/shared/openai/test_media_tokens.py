import base64
import io
import json

import pytest
from PIL import Image

from shared.input.validation import InputCheck
from shared.openai.image_rules import ImageRule
from shared.openai.media_tokens import image_tokens, media_prediction

CHAT = "/v1/chat/completions"


def _picture(width: int, height: int, kind: str = "PNG") -> str:
    file = io.BytesIO()
    # Noise, so that no format makes it small.
    Image.effect_noise((width, height), 100).convert("RGB").save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_image_counts_by_its_pixels(kind: str) -> None:
    url = f"data:image/x;base64,{_picture(280, 150, kind)}"

    assert image_tokens(url) == 10 * 6
    assert media_prediction({"messages": [_message(url)]}) == (len(url), 60)


@pytest.mark.parametrize("url", ["s3://acme/a.png", "https://x.test/a", "data:;base64,AAAA", "%"])
def test_an_image_of_unknown_size_counts_as_a_usual_one(url: str) -> None:
    assert image_tokens(url) == 1024


def test_an_image_elsewhere_counts_as_a_usual_one_of_its_model() -> None:
    tiles = ImageRule(tile=64, longest=128, tile_tokens=4)

    assert image_tokens("s3://acme/a.png", ImageRule(fixed=256)) == 256
    assert image_tokens("s3://acme/a.png", ImageRule(part=56)) == 16 * 16
    assert image_tokens("https://x.test/a", tiles) == tiles.tokens(900, 900)
    sound = {"messages": [], "file_url": "s3://acme/a.wav"}
    assert media_prediction(sound, ImageRule(fixed=256))[1] == 1024


def test_base64_in_the_other_forms_of_a_request_counts_too() -> None:
    image = _picture(56, 56)
    source = {"type": "base64", "media_type": "image/png", "data": image}
    sound = "A" * 40_960
    parts = [
        {"type": "image", "source": source},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
    ]

    found = media_prediction({"messages": [{"role": "user", "content": parts}]})

    assert found == (len(image) + len(sound), 4 + 60)


def test_a_row_with_an_image_is_predicted_by_its_text_and_its_pixels() -> None:
    url = f"data:image/png;base64,{_picture(448, 336)}"
    text = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 5}
    seen = {**text, "messages": [*text["messages"], _message(url)]}  # type: ignore[misc]
    check = InputCheck(CHAT, {"m": frozenset({CHAT})})

    rows = [row for body in (text, seen) for row in check.feed(_line(body))]

    assert len(url) > 100_000
    assert 190 < rows[1].tokens - rows[0].tokens < 16 * 12 + 40


def _message(url: str) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


def _line(body: object) -> bytes:
    custom_id = f"{len(json.dumps(body))}"
    request = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(request).encode() + b"\n"

"""Pictures by `data:`, and answers with reasoning. Pure."""

import base64
import io
from collections.abc import Mapping
from typing import Any

from PIL import Image

from tests.engine.compatibility.line import HI, MESSAGES, MOOD, RESPONSES, SEER, WEATHER, Line, chat

_COLORS: Mapping[str, Any] = {
    "RGB": (200, 30, 30),
    "RGBA": (200, 30, 30, 90),
    "L": 90,
    "1": 1,
    "P": 3,
    "CMYK": (9,) * 4,
}


def _file(
    mode: str = "RGB", size: tuple[int, int] = (40, 30), kind: str = "PNG", color: Any = None
) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, color or _COLORS[mode]).save(file, kind)
    return file.getvalue()


def _data(file: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def _part(url: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def _sees(name: str, *parts: Any, **fields: Any) -> Line:
    content = [{"type": "text", "text": "What is it?"}, *parts]
    asked = {"max_tokens": 6, "messages": [{"role": "user", "content": content}]}
    return chat("pictures", name, SEER, more={**asked, **fields})


def _thinks(name: str, **fields: Any) -> Line:
    return chat("reasoning", name, SEER, **{"max_tokens": 24, **fields})


def _of(path: str, feature: str, name: str, **fields: Any) -> Line:
    return Line(SEER, feature, name, path, {"model": SEER, "temperature": 0, **fields})


_RED, _BLUE = _data(_file()), _data(_file(color=(30, 30, 200)))
_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": MOOD}}

_PICTURES = (
    _sees("none"),
    _sees("one", _part(_RED)),
    _sees("one, in detail", _part(_RED, detail="high")),
    _sees("one before the text", messages=[
        {"role": "user", "content": [_part(_RED), {"type": "text", "text": "What is it?"}]}]),
    _sees("two", _part(_RED), _part(_BLUE)),
    _sees("without a text", messages=[{"role": "user", "content": [_part(_RED)]}]),
    _sees("in an earlier turn", messages=[
        {"role": "user", "content": [_part(_RED)]}, {"role": "assistant", "content": "Red."}, *HI]),
    _sees("of a system", messages=[{"role": "system", "content": [_part(_RED)]}, *HI]),
    *(_sees(f"{mode}", _part(_data(_file(mode)))) for mode in ("RGBA", "L", "1", "P")),
    _sees("JPEG", _part(_data(_file(kind="JPEG"), "image/jpeg"))),
    _sees("JPEG of CMYK", _part(_data(_file("CMYK", kind="JPEG"), "image/jpeg"))),
    _sees("GIF", _part(_data(_file("P", kind="GIF"), "image/gif"))),
    _sees("WebP", _part(_data(_file(kind="WEBP"), "image/webp"))),
    _sees("BMP", _part(_data(_file(kind="BMP"), "image/bmp"))),
    _sees("of another kind than it says", _part(_data(_file(kind="JPEG"), "image/png"))),
    _sees("of no kind", _part(_data(_file(), ""))),
    _sees("of one pixel", _part(_data(_file(size=(1, 1))))),
    _sees("wide", _part(_data(_file(size=(2000, 2))))),
    _sees("large", _part(_data(_file(size=(1500, 1500))))),
    _sees("cut off", _part(_data(_file(size=(300, 300))[:60]))),
    _sees("of no bytes", _part("data:image/png;base64,")),
    _sees("of wrong base64", _part("data:image/png;base64,???")),
    _sees("of a text", _part(_data(b"I am a text"))),
    _sees("not in base64", _part("data:image/png,abc")),
    _sees("a number", _part(5)),
    _sees("null", _part(None)),
    _sees("a text for an object", {"type": "image_url", "image_url": _RED}),
    _sees("nothing", {"type": "image_url"}),
    _sees("in the newer form", {"type": "input_image", "image_url": _RED}),
    _sees("with a name for the cache", {**_part(_RED), "uuid": "a"}),
    _sees("with two answers", _part(_RED), n=2, temperature=1, top_k=1),
    _sees("with logprobs", _part(_RED), logprobs=True, top_logprobs=2),
    _sees("with a form of the answer", _part(_RED), response_format=_FORM, max_tokens=24,
          thinking_token_budget=2),
    _sees("by http", _part("http://127.0.0.1:9/a.png")),
    _sees("by file", _part("file:///etc/hostname")),
    _sees("by s3", _part("s3://bucket/a.png")),
    _sees("a sound", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    _sees("a video", {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}),
    _sees("embeddings of one", {"type": "image_embeds", "image_embeds": "AAAA"}),
    _of(RESPONSES, "pictures", "one", max_output_tokens=6, input=[{"role": "user", "content": [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": _RED, "detail": "auto"}]}]),
    _of(RESPONSES, "pictures", "one without a detail", max_output_tokens=6, input=[
        {"role": "user", "content": [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": _RED}]}]),
    _of(MESSAGES, "pictures", "one", max_tokens=6, messages=[{"role": "user", "content": [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                     "data": _RED.partition(",")[2]}}]}]),
)  # fmt: skip

_REASONING = (
    _thinks("that does not end"),
    _thinks("that ends after two tokens", thinking_token_budget=2),
    _thinks("that ends at once", thinking_token_budget=0),
    _thinks("without a limit", thinking_token_budget=-1),
    _thinks("left out of the answer", thinking_token_budget=2, include_reasoning=False),
    _thinks("by an effort", reasoning_effort="low"),
    _thinks("by no effort", reasoning_effort="none"),
    _thinks("switched off for the template", chat_template_kwargs={"enable_thinking": False}),
    _thinks("before a form", thinking_token_budget=2, response_format=_FORM),
    _thinks("before a form, never ended", response_format=_FORM),
    _thinks("before a choice", thinking_token_budget=1,
            structured_outputs={"choice": ["yes", "no"]}),
    _thinks("before a tool", thinking_token_budget=1, tools=[WEATHER], tool_choice="required"),
    _thinks("before a named tool", thinking_token_budget=1, tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "weather"}}),
    _thinks("with logprobs", thinking_token_budget=2, logprobs=True, top_logprobs=1),
    _thinks("of two answers", thinking_token_budget=2, n=2, temperature=1, top_k=1),
    _thinks("with a stop", thinking_token_budget=2, stop=["e"]),
    _thinks("said in the prompt", messages=[
        *HI, {"role": "assistant", "reasoning": "Hm.", "content": "Sure."}, *HI]),
    _thinks("in an older field", messages=[
        *HI, {"role": "assistant", "reasoning_content": "Hm.", "content": "Sure."}, *HI]),
    _of(RESPONSES, "reasoning", "that does not end", input="hi", max_output_tokens=8),
    _of(RESPONSES, "reasoning", "with an effort", input="hi", max_output_tokens=8,
        reasoning={"effort": "low"}),
    _of(MESSAGES, "reasoning", "that does not end", messages=HI, max_tokens=8),
)  # fmt: skip

LINES: tuple[Line, ...] = (*_PICTURES, *_REASONING)

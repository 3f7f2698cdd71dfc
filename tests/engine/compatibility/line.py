"""A line that `vllm serve` and Batchyard both get, and short ways to write one. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
#: The models: one that writes, one of embeddings, one that compares, and one that sees and thinks.
WRITER, EMBEDDER, JUDGE, SEER = "tiny-chat", "org/mini", "tiny-judge", "tiny-vision"
#: An adapter of the first one.
ADAPTER = "tiny-lora"

HI = [{"role": "user", "content": "Tell me about trains, please."}]
UNIT = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": UNIT}}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}},
}
MOOD = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}


class Line(NamedTuple):
    """A request to one of the models. `feature` and `name` together say what it is about."""

    engine: str
    feature: str
    name: str
    path: str
    body: Any

    @property
    def id(self) -> str:
        """What names it in the records of a run."""
        return f"{self.engine} {self.path} {self.feature}: {self.name}"


#: What is compared is not chance, and short.
_GREEDY = {"max_tokens": 8, "temperature": 0}


def chat(
    feature: str,
    name: str,
    engine: str = WRITER,
    more: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Line:
    """A chat completion; a field that is `...` is left out. `more` are those with odd names."""
    body = {"model": engine, "messages": HI, **_GREEDY, "seed": 7, **fields, **(more or {})}
    return Line(engine, feature, name, CHAT, without_ellipsis(body))


def completion(feature: str, name: str, **fields: Any) -> Line:
    """A completion of the model that writes."""
    body = {"model": WRITER, "prompt": "The train", **_GREEDY, "seed": 7, **fields}
    return Line(WRITER, feature, name, COMPLETIONS, without_ellipsis(body))


def message(feature: str, name: str, **fields: Any) -> Line:
    """A message in Anthropic's form."""
    body = {"model": WRITER, "messages": HI, **_GREEDY, **fields}
    return Line(WRITER, feature, name, MESSAGES, without_ellipsis(body))


def response(feature: str, name: str, **fields: Any) -> Line:
    """A response, in OpenAI's newer form."""
    body = {"model": WRITER, "input": "hi", "max_output_tokens": 8, "temperature": 0, **fields}
    return Line(WRITER, feature, name, RESPONSES, without_ellipsis(body))


def embedding(feature: str, name: str, **fields: Any) -> Line:
    """An embedding."""
    body = {"model": EMBEDDER, "input": "reset my password", **fields}
    return Line(EMBEDDER, feature, name, EMBEDDINGS, without_ellipsis(body))


def judged(feature: str, name: str, path: str, **fields: Any) -> Line:
    """A score, a ranking or a class."""
    return Line(JUDGE, feature, name, path, without_ellipsis({"model": JUDGE, **fields}))


def without_ellipsis(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not `...`."""
    return {name: value for name, value in body.items() if value is not ...}

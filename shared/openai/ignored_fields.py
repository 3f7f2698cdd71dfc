"""Fields that the engine accepts and does not look at, though clients expect it to. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shared.openai.endpoints import Endpoint

#: By name, the values that ask for no more than the engine does anyway. The fields are OpenAI's;
#: `Body.unread` has others that say nothing about the answer, such as `user`.
IGNORED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "context_management": (),
    "conversation": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "timestamp_granularities": (["segment"],),
    "timestamp_granularities[]": (["segment"],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
#: What the engine looks at in these objects.
_FORM = frozenset({"type", "json_schema"})
_SCHEMA = frozenset({"name", "description", "schema", "strict"})
#: Characters of a client's own name of a field that are repeated, and names that are counted.
_MAX_NAME, _MAX_NAMES = 64, 20


def ignored_fields(
    endpoint: Endpoint, body: Mapping[str, Any], extra_fields: Collection[str] = ()
) -> Iterator[str]:
    """The fields, dotted, whose values have no effect. `extra_fields` are open beside the form."""
    known = endpoint.body.model_fields
    for name, value in body.items():
        if not value or name in known:
            continue
        is_opened = name in extra_fields and name not in endpoint.fields | endpoint.body.closed
        if is_opened or (name in IGNORED and value not in IGNORED[name]):
            yield name[:_MAX_NAME]
    form = body.get("response_format")
    if "response_format" not in known or not isinstance(form, dict):
        return
    if form.get("type") == "structural_tag":
        return
    yield from _others("response_format", form, _FORM)
    if isinstance(schema := form.get("json_schema"), dict):
        yield from _others("response_format.json_schema", schema, _SCHEMA)


def _others(place: str, value: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    for name, one in value.items():
        if one and name not in known:
            yield f"{place}.{name[:_MAX_NAME]}"


class IgnoredFields:
    """Counts the requests of an input by the fields of theirs that have no effect."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._first_lines: dict[str, int] = {}

    def add(self, line: int, names: Iterator[str]) -> None:
        """Count a request in this line of the input."""
        for name in names:
            if name in self._first_lines or len(self._first_lines) < _MAX_NAMES:
                self._requests[name] += 1
                self._first_lines.setdefault(name, line)

    def messages(self) -> list[str]:
        """What to say of each field, in the order of the lines that have them first."""
        return [
            f"'{name}' has no effect here: the engine does not look at it. Requests that have it: "
            f"{self._requests[name]:,}. The first is in line {line}."
            for name, line in self._first_lines.items()
        ]

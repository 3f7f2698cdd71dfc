"""Which answers of a batch are asked for again, because they do not fit its schema. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.table.answer_shape import shape_of
from shared.table.result_rows import has_shape


class _Asking(msgspec.Struct, frozen=True):
    retries: int
    answers: dict[str, Any] = msgspec.field(name="schema")


class _Body(msgspec.Struct):
    temperature: float | None = None
    seed: int | None = None


class _Request(msgspec.Struct):
    body: _Body


def asking_text(retries: int, schema: Mapping[str, Any]) -> str:
    """What a batch keeps of it: a row is asked again up to `retries` times."""
    return msgspec.json.encode(_Asking(retries, dict(schema))).decode()


class Asking:
    """Says of each answer whether its row is asked again."""

    def __init__(self, text: str) -> None:
        """`text` is as `asking_text` made it."""
        found = msgspec.json.decode(text, type=_Asking)
        self._retries = found.retries
        self._shape = shape_of(found.answers)

    def wants_another(self, line: bytes, body: bytes, asked_again: int) -> bool:
        """Whether the request of this line, asked again so often before, is asked once more.

        `body` is that of a successful response. What would give the same answer is not asked.
        """
        if asked_again >= self._retries or has_shape(body, self._shape):
            return False
        return not _repeats_itself(line)


def _repeats_itself(line: bytes) -> bool:
    """Whether the request has one answer only: a seed, or no temperature."""
    try:
        body = msgspec.json.decode(line, type=_Request).body
    except msgspec.DecodeError:
        # What the engine made of it is not known here.
        return False
    return body.seed is not None or body.temperature == 0

"""What a call's result adds to its row. Pure."""

from typing import Any

import msgspec

from shared.pipeline.declaration import Call
from shared.pipeline.stepping import Failed, Item
from shared.table.answer_shape import Shape, shape_of
from shared.table.output import template_schema
from shared.table.result_rows import result_row

WRITING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_EMBEDDING = "/v1/embeddings"


def answer_column(call: Call) -> str:
    """The column that the answer becomes."""
    if call.answer is not None:
        return call.answer
    if call.endpoint in WRITING:
        return "answer"
    return "embedding" if call.endpoint == _EMBEDDING else "response"


def answer_shape(call: Call) -> Shape | None:
    """The shape of the answers; None for any. Raises MalformedSchemaError."""
    schema = answers_schema(call)
    return None if schema is None else shape_of(schema)


def answers_schema(call: Call) -> dict[str, Any] | None:
    """The JSON schema of the answers, if they have one."""
    if call.endpoint not in WRITING:
        return None
    return call.answer_schema or template_schema(call.template)


def new_columns(call: Call) -> list[str]:
    """The columns that the call adds to its rows. Raises MalformedSchemaError."""
    shape = answer_shape(call)
    fields = list(shape.fields) if shape is not None and shape.kind == "object" else []
    return [answer_column(call), *fields]


def new_shapes(call: Call) -> dict[str, Shape]:
    """The shapes of those new columns of which they are known."""
    shape, column = answer_shape(call), answer_column(call)
    if call.endpoint not in WRITING:
        return {} if call.endpoint == _EMBEDDING else {column: Shape("json", is_nullable=True)}
    if shape is None or shape.kind == "object":
        return {column: Shape("text"), **({} if shape is None else shape.fields)}
    return {column: shape}


def has_vectors(call: Call) -> bool:
    """Whether its answers are vectors."""
    return call.endpoint == _EMBEDDING


class Answers:
    """Reads the results of one stage."""

    def __init__(self, stage: int, call: Call) -> None:
        self._stage = stage
        self._call = call
        self._shape = answer_shape(call)

    def read(self, item: Item, line: bytes) -> Item | Failed:
        """The row as the next stage gets it, or why it ends here."""
        values, parsed = result_row(line, self._shape, 0)
        if "error_code" in values:
            message = values.get("error") or "The request failed."
            return Failed(item.id, self._stage, values["error_code"], message)
        value = self._value(values)
        if value is None:
            return Failed(item.id, self._stage, "no_answer", "The response has no answer.")
        carried = self._call.carry
        columns = (
            item.columns if carried is None else {name: item.columns.get(name) for name in carried}
        )
        columns = {**columns, answer_column(self._call): value}
        if self._shape is not None and self._shape.kind == "object":
            columns |= parsed
        elif self._shape is not None:
            columns[answer_column(self._call)] = parsed
        return Item(item.id, columns, item.order)

    def _value(self, values: dict[str, Any]) -> Any:
        if self._call.endpoint in WRITING:
            return values.get("answer")
        if self._call.endpoint == _EMBEDDING:
            return values.get("embedding")
        return msgspec.json.decode(values["response"]) if "response" in values else None

"""Lines that are no requests, where they are errors of their rows instead of the whole batch. Pure.

A plan puts the error in the line's place (`bad_line`), in a copy of the lines around it. Nobody
judges the line again.
"""

import json
from collections.abc import Iterable, Sequence

import msgspec

from shared.input.problems import DECODE_ERRORS
from shared.input.request_lines import mended
from shared.input.rows import Row
from shared.openai.shapes import BatchError


class _BadLine(msgspec.Struct):
    error: msgspec.Raw
    custom_id: str | None = None
    # A request has one.
    method: str | None = None


def bad_line(line: bytes, problems: Sequence[BatchError], *, max_custom_id: int) -> bytes:
    """What stands for the line: its `custom_id`, if it has a usable one, and its error.

    The first problem gives the code, and the message has all of them.
    """
    error = problems[0].model_dump()
    error["message"] = " ".join(dict.fromkeys(problem.message for problem in problems))
    custom_id = _custom_id(line)
    if custom_id is not None and len(custom_id) > max_custom_id:
        custom_id = None
    return json.dumps({"custom_id": custom_id, "error": error}).encode() + b"\n"


def error_of(line: bytes) -> bytes | None:
    """The error in a line of `bad_line`, as JSON; None for a request."""
    try:
        found = msgspec.json.decode(line, type=_BadLine)
    except DECODE_ERRORS:
        return None
    return bytes(found.error) if found.method is None else None


def problem_of(row: Row) -> BatchError | None:
    """Why the row will get an error, as far as its line says; None if it does not."""
    if row.bad_line is not None:
        return BatchError.model_validate_json(error_of(row.bad_line) or b"{}")
    if row.refusal is None:
        return None
    param, message = row.refusal
    return BatchError(
        code="invalid_request",
        line=row.number,
        message=f"{message}.",
        param=f"body.{param}" if param else "body",
    )


class BadRows:
    """Gives each bad line the endpoint and model of the good row before it, or else of the first.

    A row must belong to a lane, and these name none, or not that of their batch.
    """

    def __init__(self) -> None:
        self._near: Row | None = None
        self._waiting: list[Row] = []

    @property
    def has_good_row(self) -> bool:
        return self._near is not None

    def placed(self, rows: Iterable[Row]) -> list[Row]:
        """These rows and those that waited for a good one, in order."""
        found: list[Row] = []
        for row in rows:
            if row.bad_line is None:
                if self._near is None:
                    found += [_beside(row, waiting) for waiting in self._waiting]
                    self._waiting = []
                self._near = row
                found.append(row)
            elif self._near is None:
                self._waiting.append(row)
            else:
                found.append(_beside(self._near, row))
        return found


def _beside(near: Row, row: Row) -> Row:
    return msgspec.structs.replace(row, url=near.url, model=near.model)


def _custom_id(line: bytes) -> str | None:
    try:
        # Half a surrogate pair in another place does not take the name from the client.
        value = msgspec.json.decode(mended(line))
        custom_id = value.get("custom_id") if isinstance(value, dict) else None
    except DECODE_ERRORS:
        return None
    return custom_id if isinstance(custom_id, str) and custom_id else None

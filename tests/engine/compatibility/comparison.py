"""What of two answers has to be the same, and what a line came to each way. Pure."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from shared.input.validation import InputCheck
from tests.engine.compatibility.differences import difference
from tests.engine.compatibility.line import Line
from worker.invalid_bodies import MAX_NAME

#: Ids, times and the signatures of thoughts differ each time; the fingerprint is that of the
#: engine's arguments.
_OWN = {
    "id",
    "call_id",
    "created",
    "created_at",
    "completed_at",
    "request_id",
    "system_fingerprint",
    "signature",
}
#: How near two decimals are that count as the same.
_DIGITS = 1e-4
_NAMES = re.compile(r"\['\w+'(, '\w+')*\]")
#: What vLLM's words for an invalid body say beside what is wrong and where: the value, and a page
#: of pydantic's.
_VALUES = re.compile(
    r"(?<=['\"]), 'input': .*?(?=(, 'ctx': \{.*)?\}$)|, input_value=.*, input_type=\w+(?=\]$)"
    r"|\n    For further information visit .*",
    re.MULTILINE,
)
_PLACES = re.compile(r"'loc': \(.*?\), 'msg'")
_LONG_NAMES = re.compile(rf"'([^']{{{MAX_NAME}}})[^']*'")
#: The results of `vllm run-batch` besides statuses: it has no such endpoint for this model, it ends
#: without any result, or its answer is another one.
SAME, NOWHERE, ENDS, OTHERWISE = "same", "no endpoint", "ends", "another answer"

#: Status, and the body as JSON; None for a body that is none.
Answer = tuple[int, Any]


class Outcome(NamedTuple):
    """What a line came to: in `vllm serve`, in `vllm run-batch`, and here."""

    #: The status.
    serve: int
    #: A status other than that, or one of the words above.
    run_batch: str
    #: `same`, or the id of a difference.
    here: str
    #: The code of OpenAI's validation that fails the whole batch; empty if none does.
    fails: str


def comparable(answer: Answer) -> Answer:
    """Without ids and times, and with every error in OpenAI's envelope."""
    status, body = int(answer[0]), answer[1]
    if not isinstance(body, dict):
        return status, body
    if status == 404 and "detail" in body:
        # The web framework's own words.
        error = {"message": body["detail"], "type": "invalid_request_error"}
        return status, {"error": {**error, "param": None, "code": None}}
    if body.get("type") == "error":
        # Anthropic's envelope.
        return status, {"error": {"param": None, "code": None, **body["error"]}}
    return status, _anonymous(body)


def _are_same(one: Any, other: Any) -> bool:
    """Whether they are the same but for the last digits of decimals.

    Those depend on which rows vLLM computes together, also without us.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_DIGITS, abs_tol=_DIGITS)
    return type(one) is type(other) and bool(one == other)


def outcome(line: Line, served: Answer, run: Answer | None, ours: Answer, *, fails: str) -> Outcome:
    """What the line came to; `run` is None if it ends `vllm run-batch`.

    Raises AssertionError if our answer is another one and no meant difference.
    """
    here = SAME
    if not _are_same(comparable(served), comparable(ours)):
        found = difference(served, ours)
        assert found is not None, f"{line.id}: {comparable(ours)} and not {comparable(served)}"
        here = found
    return Outcome(served[0], run_batch_result(served, run), here, fails)


def run_batch_result(served: Answer, run: Answer | None) -> str:
    """What `vllm run-batch` makes of a line."""
    if run is None:
        return ENDS
    if isinstance(run[1], str) and run[1].startswith(("URL ", "Model does not support")):
        return NOWHERE
    if _are_same(comparable(run), comparable(served)):
        return SAME
    return str(run[0]) if run[0] != served[0] else OTHERWISE


def failing_code(line: Line, endpoints: Mapping[str, frozenset[str]]) -> str:
    """The code with which OpenAI's validation of the line fails the whole batch; empty if not."""
    check = InputCheck(line.path, endpoints)
    check.feed(written(line) + b"\n")
    check.finish()
    return (check.problems[0].code or "") if check.problems else ""


def written(line: Line) -> bytes:
    """The line of a batch's input."""
    request = {"custom_id": "row-1", "method": "POST", "url": line.path, "body": line.body}
    return json.dumps(request).encode()


def _anonymous(value: Any) -> Any:
    if isinstance(value, str):
        value = _PLACES.sub(
            lambda place: _LONG_NAMES.sub(r"'\1'", place[0]), _VALUES.sub("", value)
        )
        # Of a set, whose order differs with each process.
        return _NAMES.sub(lambda names: str(sorted(names[0][2:-2].split("', '"))), value)
    if isinstance(value, dict):
        return {key: _anonymous(inner) for key, inner in value.items() if key not in _OWN}
    return [_anonymous(inner) for inner in value] if isinstance(value, list) else value

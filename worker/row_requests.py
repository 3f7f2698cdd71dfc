"""What a line asks of the engine, and what its answer is told as. Pure.

The replica or a front process reads a line, whichever answers it.
"""

import json
from typing import Any, NamedTuple

from shared.openai.endpoints import ENDPOINTS
from shared.openai.row_rules import RowRules, wants_stream
from shared.slices import SliceUsage
from worker.engine_errors import Answer
from worker.engine_results import SUCCESS, refusal
from worker.known_failures import explained
from worker.row_defaults import with_defaults
from worker.row_rules import bounded_result, refused
from worker.rows import usage_of


class Request(NamedTuple):
    """A request that may run, with the model's limits and OpenAI's defaults."""

    url: str
    body: Any
    #: That of the header, if the line has one.
    request_id: str | None


class RowAnswer(NamedTuple):
    """The result of a row, before anybody knows how long it took."""

    status: int
    body: bytes
    #: Of an answer that the engine has computed, even if it is too large to be the result.
    usage: SliceUsage | None = None


def request_of(line: bytes, rules: RowRules) -> Request | Answer:
    """What the line asks for, or the result of one that may not run."""
    try:
        request = json.loads(line)
        url, body = request["url"], request["body"]
        request_id = request.get("request_id")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return refusal("This line is not a request. Write a JSON object with a `url` and a `body`.")
    # vLLM's app has more, some of it not for tenants: loading adapters, shutting down.
    if not isinstance(url, str) or url not in ENDPOINTS:
        return refusal(
            f"There is no endpoint {url!r}. Use one of {', '.join(ENDPOINTS)}.",
            status=404,
            param="url",
        )
    if isinstance(body, dict):
        if wants_stream(ENDPOINTS[url], body):
            return refusal(
                "Streaming is not supported in the Batch API. Leave out `stream`.",
                param="body.stream",
                code="streaming_unsupported",
            )
        if (found := refused(rules, url, body)) is not None:
            return found
        body = with_defaults(url, rules.bounded(url, body))
    if not (isinstance(request_id, str) and request_id.isascii() and request_id.isprintable()):
        request_id = None  # it would not be a valid header
    return Request(url, body, request_id)


def answer_of(request: Request, answer: Answer, rules: RowRules) -> RowAnswer:
    """What an engine that runs has answered, as the row's result."""
    usage = usage_of(answer[1]) if answer[0] == SUCCESS else None
    return RowAnswer(*bounded_result(rules, explained(request.body, answer)), usage)

"""Where our answer is meant to be another one than that of `vllm serve`, and why. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from worker.invalid_bodies import MAX_ERRORS
from worker.known_failures import NOT_BASE64

Answer = tuple[int, Any]


class Difference(NamedTuple):
    """A kind of difference."""

    reason: str
    #: Whether the answers of `vllm serve` and ours differ in this way.
    applies: Callable[[Answer, Answer], bool]


def _refused(*words: str) -> Callable[[Answer, Answer], bool]:
    return lambda _, ours: ours[0] == 400 and any(one in _message(ours) for one in words)


def _message(answer: Answer) -> str:
    body = answer[1]
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else ""


def _errors(answer: Answer) -> int:
    """How many errors the message says that the body has, told or not."""
    told = re.match(r"(\d+) validation errors", _message(answer))
    return int(told[1]) if told else 0


DIFFERENCES: Mapping[str, Difference] = {
    "closed field": Difference(
        "The field is not one of [those of a request](openai-compatibility.md#fields-of-a-request)."
        " vLLM ignores unknown fields, and some of its own reach past the request.",
        _refused("has no such field here"),
    ),
    "former name": Difference(
        "vLLM ignores the former name without a word; here the refusal tells the new one.",
        _refused("The engine ignores this former name"),
    ),
    "limit of the model": Difference(
        "A request may cost [what its operator allows](configuration.md#what-one-request-may-cost)."
        " vLLM has most of these limits, too, with other words.",
        _refused("the limit of this model", "and this model takes"),
    ),
    "template": Difference(
        "A template is a program. vLLM refuses it, too, with other words.",
        _refused("Templates of requests are not used"),
    ),
    "stream": Difference(
        "The result of a request is one JSON object, as in OpenAI's batches.",
        _refused("Streaming is not supported in the Batch API"),
    ),
    "reason of a 500": Difference(
        "vLLM answers 500 or 501 to a request that can never be answered. A 500 would be tried "
        "again.",
        lambda served, ours: (
            served[0] in (500, 501)
            and ours[0] == 400
            and _message(ours).startswith(
                ("No token was left", "This text has half of a surrogate", NOT_BASE64)
            )
        ),
    ),
    "many errors": Difference(
        f"Of more than {MAX_ERRORS} errors of a body the likeliest {MAX_ERRORS} are told, and how "
        "many more there are. None repeats the value that is wrong, as those of vLLM do; that "
        "alone counts as no difference.",
        lambda served, ours: (
            served[0] == ours[0] == 400
            and _errors(served) == _errors(ours) > MAX_ERRORS
            and f"and {_errors(ours) - MAX_ERRORS} more" in _message(ours)
        ),
    ),
    "default of OpenAI's": Difference(
        "vLLM demands what OpenAI lets a request leave out: the `detail` of an `input_image`, and "
        "the `type` of a message of the assistant in parts. Here it is completed.",
        lambda served, ours: served[0] == 400 and ours[0] == 200 and _errors(served) > MAX_ERRORS,
    ),
    "medium": Difference(
        "Media come as `data:`, from the tenant's places in S3, or from hosts that the operator "
        "names ([media](configuration.md#media-of-requests)); lane jobs and gateways fetch them, "
        "not engines.",
        _refused("Send the media along as a `data:` URL", "parts in the engine's own form"),
    ),
    "half a pair": Difference(
        "vLLM refuses these texts, too, in the words of its codec.",
        lambda served, ours: (
            served[0] == 400
            and ("surrogate pair" in _message(ours) or "surrogates not" in _message(served))
        ),
    ),
    "no JSON": Difference(
        "The answer would be bytes, and a batch's output holds JSON only.",
        _refused("The answer to this request is not JSON"),
    ),
}


def difference(served: Answer, ours: Answer) -> str | None:
    """The id of the difference that this is; None if it is none that is meant."""
    found = (name for name, one in DIFFERENCES.items() if one.applies(served, ours))
    return next(found, None)

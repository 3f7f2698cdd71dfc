"""Requests that vLLM answers with 500 though they are what is wrong: here they get 400. Pure.

A 500 says that a server failed, and that the same request may do better later. These never do.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shared.openai.media import media_of
from shared.openai.torn_texts import TORN, is_torn
from worker.engine_errors import Answer
from worker.engine_results import SERVER_ERROR, refusal
from worker.grammars import grammars

#: Fields whose texts the engine's core gets as they are, and cannot get with half a pair.
_TEXTS = ("stop", "bad_words", "stop_sequences")
_BASE64 = ";base64,"
#: What takes tokens away, so that none may be left of those that a grammar allows next.
_RESTRICTIONS = (
    "allowed_token_ids",
    "bad_words",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
)
#: vLLM's whole message when it ends a request whose token the grammar rejects.
_GENERATION_FAILED = "Internal server error"
#: vLLM's message for a `data:` URL of another form, with the status 501.
_NOT_BASE64 = "Only base64 data URLs are supported for now."
NOT_BASE64 = "A `data:` URL needs `;base64,` before its data"


def explained(body: Any, answer: Answer) -> Answer:
    """The engine's answer, or a refusal with the reason where the request is why it failed.

    Only for answers of an engine that runs: one that dies fails its requests, too.
    """
    if answer[0] < SERVER_ERROR or not isinstance(body, dict):
        return answer
    message = json.loads(answer[1])["error"]["message"]
    # vLLM's error of what could not be handed to its core has no message.
    if not message and (param := next(_with_half_a_pair(body), None)):
        return refusal(f"{TORN}.", param=param)
    if message == _NOT_BASE64:
        places = (one.place for one in media_of(body) if one.is_data and _BASE64 not in one.url)
        return refusal(f"{NOT_BASE64}.", param=next(places, None))
    if message == _GENERATION_FAILED and (names := list(_excluding(body))):
        return refusal(
            "No token was left that the form of the answer and the other fields allow: "
            f"{', '.join(names)}. Change one of them.",
            param=names[-1],
        )
    return answer


def _with_half_a_pair(body: Mapping[str, Any]) -> Iterator[str]:
    """Where a text stands that UTF-8 does not have."""
    for name in _TEXTS:
        value = body.get(name)
        if isinstance(value, str) and is_torn(value):
            yield name
        if isinstance(value, list):
            for number, text in enumerate(value):
                if isinstance(text, str) and is_torn(text):
                    yield f"{name}.{number}"


def _excluding(body: Mapping[str, Any]) -> Iterator[str]:
    """The fields that say what an answer may be, if there are several kinds of them."""
    forms = dict.fromkeys(grammar.param for grammar in grammars(body))
    restrictions = [name for name in _RESTRICTIONS if body.get(name)]
    if forms and restrictions:
        yield from forms
        yield from restrictions

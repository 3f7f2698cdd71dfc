"""Decides from the evidence whether live calls have had what they were promised. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.chaos.evidence import Evidence
from tests.chaos.rows import answer, request

#: Kind, what it is about, and what is wrong with it.
Found = tuple[str, str, str]

_OK = 200
#: Of answers that say that there is none now: the tenant's limits, a death, nobody there.
_NO_ANSWER = frozenset({429, 500, 503})
#: Of so many, some have their whole stream.
_MANY_CALLS = 20


def broken_live_promises(evidence: Evidence) -> Iterator[Found]:
    """Every promise to a live call that was not kept, and every seat that is still taken."""
    ends = {entry["row"]: entry for entry in evidence.live if entry["what"] == "ended"}
    asked = [entry for entry in evidence.live if entry["what"] == "asked"]
    for call in asked:
        about = f"live call {call['row']}"
        end = ends.get(call["row"])
        if end is None or end["end"] == "hung":
            yield "live_hung", about, "it has no end"
        else:
            for kind, says in _broken(call, end):
                yield kind, about, says
    if len(asked) >= _MANY_CALLS and not any(end["end"] == "done" for end in ends.values()):
        yield "did_not_bite", "live calls", f"none of {len(asked)} had its whole stream"
    for name, count in evidence.engine.items():
        if count:
            yield "live_seat_taken", f"the engine's {name}", f"{count} at the end"


def _broken(call: Mapping[str, Any], end: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with the end of a call: a kind, and how it is wrong."""
    said = answer(request("live", call["row"], call["model"])["body"])
    text = said.body["choices"][0]["message"]["content"] if said.status == _OK else ""
    is_whole = end["end"] != "done" or end["text"] == text
    if not text.startswith(end["text"]) or not is_whole:
        yield "live_foreign", f"its stream has {end['text']!r}"
    # Where the connection was lost, its gateway was killed or the link to it was cut.
    if end["end"] == "cut":
        yield "live_unended", "its stream ended without [DONE] and without an error"
    if end["end"] == "error event" and not _is_error(end):
        yield "live_odd", f"its stream ended with {end.get('body')}"
    status = end.get("status")
    if status == said.status and end.get("body") != said.body:
        yield "live_foreign", f"its answer is {end.get('body')}"
    if status not in {None, said.status} and not (status in _NO_ANSWER and _is_error(end)):
        yield "live_odd", f"it was answered {status}: {end.get('body')}"


def _is_error(end: Mapping[str, Any]) -> bool:
    """Whether its body is an error as OpenAI has it."""
    body = end.get("body")
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and {"message", "type", "param", "code"} <= error.keys()

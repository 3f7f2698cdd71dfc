"""The checker finds each kind of promise to a live call that was broken, planted into evidence."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.evidence import Evidence
from tests.chaos.live_check import broken_live_promises
from tests.chaos.rows import answer, request

MODEL = "alpha"
DIED = {"error": {"message": "m", "type": "server_error", "param": None, "code": "engine_died"}}
BODIES = [answer(request("live", row, MODEL)["body"]) for row in range(40)]
#: A call that is answered, and one that is refused.
GOOD, OTHER, *_ = [row for row, said in enumerate(BODIES) if said.status == 200]
BAD = next(row for row, said in enumerate(BODIES) if said.status == 400)

Plant = Callable[[Evidence], object]


def text(row: int) -> str:
    said: str = BODIES[row].body["choices"][0]["message"]["content"]
    return said


def call(row: int, **end: Any) -> list[dict[str, Any]]:
    asked = {"what": "asked", "row": row, "model": MODEL, "stream": "status" not in end}
    return [asked, {"what": "ended", "row": row, "text": "", **end}]


def in_order(end: str = "done") -> Evidence:
    """A run in which every kind of end came that may come."""
    live = call(GOOD, end=end, text=text(GOOD))
    live += call(1000, end="lost") + call(1001, end="error event", body=DIED)
    live += call(BAD, end="status 400", status=400, body=BODIES[BAD].body)
    live += call(OTHER, end="status 200", status=200, body=BODIES[OTHER].body)
    live += call(1002, end="status 503", status=503, body=DIED)
    return Evidence(live=live, engine={"seats": 0, "calls": 0})


def kinds(evidence: Evidence) -> set[str]:
    return {kind for kind, _, _ in broken_live_promises(evidence)}


def test_what_may_happen_breaks_no_promise() -> None:
    assert list(broken_live_promises(in_order())) == []
    cut_short = in_order()
    cut_short.live[1] |= {"end": "error event", "text": text(GOOD)[:9], "body": DIED}
    assert list(broken_live_promises(cut_short)) == []


def stream(**end: Any) -> Plant:
    return lambda evidence: evidence.live[1].update(end)


def other(**end: Any) -> Plant:
    return lambda evidence: evidence.live[9].update(end)


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        pytest.param("live_hung", lambda evidence: evidence.live.pop(1), id="no end"),
        pytest.param("live_hung", stream(end="hung"), id="given up"),
        pytest.param(
            "live_unended", stream(end="cut", text=text(GOOD)[:9]), id="stream without an end"
        ),
        pytest.param("live_foreign", stream(text=text(OTHER)), id="another's stream"),
        pytest.param(
            "live_foreign", stream(text=text(GOOD)[:-1]), id="a stream that lacks a piece"
        ),
        pytest.param("live_foreign", stream(text=text(GOOD) + "x"), id="a stream with more"),
        pytest.param(
            "live_foreign", stream(end="lost", text=text(OTHER)[:9]), id="another's piece"
        ),
        pytest.param("live_foreign", other(body=BODIES[GOOD].body), id="another's answer"),
        pytest.param(
            "live_odd",
            stream(end="error event", text="", body={"error": "died"}),
            id="an error of another form",
        ),
        pytest.param("live_odd", other(status=503, body=None), id="no body"),
        pytest.param("live_odd", other(status=502, body=DIED), id="a proxy's status"),
        pytest.param(
            "live_odd", other(status=400, body=BODIES[BAD].body), id="a refusal of what is allowed"
        ),
        pytest.param(
            "live_seat_taken", lambda evidence: evidence.engine.update(seats=1), id="a seat"
        ),
        pytest.param(
            "live_seat_taken", lambda evidence: evidence.engine.update(calls=1), id="a call"
        ),
    ],
)
def test_each_broken_promise_is_found(kind: str, plant: Plant) -> None:
    evidence = copy.deepcopy(in_order())

    plant(evidence)

    assert kinds(evidence) == {kind}


def test_calls_of_which_none_has_its_answer_prove_nothing() -> None:
    evidence = Evidence(live=[line for row in range(20) for line in call(row, end="lost")])

    assert kinds(evidence) == {"did_not_bite"}

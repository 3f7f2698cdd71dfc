"""The outsider's judge finds each kind of lie: one thing is changed, and one lie is found."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.outsider.judge import lies
from tests.outsider.notes import Notes, Seen

_BATCH = "batch_1"
_ROWS: list[tuple[str, Mapping[str, Any]]] = [("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 0})]


def _answer(body: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    return (200, {"said": body["n"]}) if body["n"] else (400, {"error": {"code": "zero"}})


def _line(custom_id: str, status: int, body: Mapping[str, Any]) -> bytes:
    response = {"status_code": status, "body": body}
    return (
        json.dumps({"custom_id": custom_id, "response": response, "error": None}).encode() + b"\n"
    )


def _event(kind: str, sequence: str, **data: Any) -> dict[str, Any]:
    return {
        "id": f"evt_{sequence}",
        "source": f"/tenants/me/batches/{_BATCH}",
        "subject": _BATCH,
        "type": f"batch.{kind}",
        "sequence": sequence,
        "data": {"id": _BATCH, **data},
    }


def _notes() -> Notes:
    """All as the documents have it."""
    end = {
        "id": _BATCH,
        "status": "completed",
        "request_counts": {"total": 3, "completed": 2, "failed": 1},
        "output_file_id": "file-1",
        "error_file_id": "file-2",
    }
    output = _line("a", 200, {"said": 1}) + _line("b", 200, {"said": 2})
    error = _line("c", 400, {"error": {"code": "zero"}})
    seen = Seen(
        key="key",
        rows=list(_ROWS),
        door="http",
        ids={_BATCH},
        statuses=["validating", "in_progress", "in_progress", "completed"],
        end=end,
        files={"output": output, "error": error},
        file_objects={"output": {"bytes": len(output)}, "error": {"bytes": len(error)}},
        strangers_status=404,
    )
    last = {name: end[name] for name in end if name != "id"}
    events = [_event("accepted", "01"), _event("completed", "03", **last)]
    return Notes(batches=[seen], events=[*events, copy.deepcopy(events[0])], listed=[_BATCH])


def _output(notes: Notes, body: bytes) -> None:
    [seen] = notes.batches
    seen.files["output"] = body
    seen.file_objects["output"] = {"bytes": len(body)}


def _ended(notes: Notes, status: str) -> None:
    assert notes.batches[0].end is not None
    notes.batches[0].end["status"] = status


_A, _B = _line("a", 200, {"said": 1}), _line("b", 200, {"said": 2})
_CHANGES: dict[str, Callable[[Notes], Any]] = {
    "surprise": lambda notes: notes.surprises.append("KeyError"),
    "not_one_batch": lambda notes: notes.batches[0].ids.add("batch_2"),
    "went_back": lambda notes: notes.batches[0].statuses.insert(2, "validating"),
    "shown_to_a_stranger": lambda notes: setattr(notes.batches[0], "strangers_status", 200),
    "not_ended": lambda notes: setattr(notes.batches[0], "end", None),
    "wrong_end": lambda notes: _ended(notes, "failed"),
    "file_missing": lambda notes: notes.batches[0].files.pop("output"),
    "file_differs": lambda notes: notes.batches[0].file_objects["output"].update(bytes=1),
    "out_of_order": lambda notes: _output(notes, _B + _A),
    "row_missing": lambda notes: _output(notes, _A),
    "row_twice": lambda notes: _output(notes, _A + _B + _B),
    "wrong_result": lambda notes: _output(notes, _A + _line("b", 200, {"said": 1})),
    "wrong_counts": lambda notes: notes.batches[0].end["request_counts"].update(total=4),  # type: ignore[index]  # it has ended
    "wrong_listing": lambda notes: notes.listed.append(_BATCH),
    "event_contradicts": lambda notes: notes.events[2].update(type="batch.updated"),
    "event_missing": lambda notes: notes.events.pop(1),
    "event_of_a_stranger": lambda notes: notes.events.append(
        {**_event("accepted", "09"), "subject": "batch_9", "source": "/x/batches/batch_9",
         "data": {"id": "batch_9"}}
    ),
}  # fmt: skip


def test_what_the_documents_promise_is_no_lie() -> None:
    assert lies(_notes(), _answer) == []


@pytest.mark.parametrize("kind", _CHANGES)
def test_each_kind_of_lie_is_found(kind: str) -> None:
    notes = _notes()
    _CHANGES[kind](notes)

    assert kind in {lie.kind for lie in lies(notes, _answer)}


@pytest.mark.parametrize(
    "change",
    [
        lambda events: events[1]["data"].update(status="failed"),
        lambda events: events[1].update(sequence="00"),
        lambda events: events[0].update(sequence="03"),
        lambda events: events[0].update(source="/tenants/me/batches/other"),
    ],
    ids=["another status", "an event after the end", "a sequence twice", "another source"],
)
def test_events_that_do_not_fit_are_found(change: Callable[[Any], None]) -> None:
    notes = _notes()
    change(notes.events)

    assert "event_contradicts" in {lie.kind for lie in lies(notes, _answer)}


def test_a_cancelled_batch_may_have_rows_that_did_not_run() -> None:
    notes = _notes()
    [seen] = notes.batches
    _output(notes, _A)
    not_run = {"custom_id": "b", "response": None, "error": {"code": "batch_cancelled"}}
    error = json.dumps(not_run).encode() + b"\n" + seen.files["error"]
    seen.files["error"], seen.file_objects["error"] = error, {"bytes": len(error)}
    counts = {"total": 3, "completed": 1, "failed": 2}
    assert seen.end is not None
    seen.end.update(request_counts=counts)
    notes.events[1]["data"].update(request_counts=counts)

    assert {lie.kind for lie in lies(notes, _answer)} == {"wrong_result"}
    seen.cancel_status = 200
    seen.end["status"] = notes.events[1]["data"]["status"] = "cancelled"
    notes.events[1]["type"] = "batch.cancelled"

    assert lies(notes, _answer) == []


def test_a_batch_that_was_cancelled_while_it_was_validating_has_no_rows() -> None:
    notes = _notes()
    [seen] = notes.batches
    seen.files, seen.file_objects, seen.cancel_status = {}, {}, 200
    said = {
        "status": "cancelled",
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "output_file_id": None,
        "error_file_id": None,
    }
    assert seen.end is not None
    seen.end.update(said)
    notes.events[1]["data"].update(said)
    notes.events[1]["type"] = "batch.cancelled"

    seen.statuses = ["validating", "in_progress", "cancelled"]
    assert {lie.kind for lie in lies(notes, _answer)} == {"row_missing", "wrong_counts"}
    seen.statuses = ["validating", "cancelling", "cancelled"]

    assert lies(notes, _answer) == []


def test_few_rows_may_be_given_up_where_engines_are_killed_and_not_many() -> None:
    def lies_of(rows: int) -> set[str]:
        notes = _notes()
        [seen] = notes.batches
        seen.rows = [(str(number), {"n": 1}) for number in range(rows)]
        body = {"error": {"code": "engine_died"}}
        error = b"".join(_line(str(number), 500, body) for number in range(rows))
        seen.files, seen.file_objects = {"error": error}, {"error": {"bytes": len(error)}}
        said = {
            "output_file_id": None,
            "request_counts": {"total": rows, "completed": 0, "failed": rows},
        }
        assert seen.end is not None
        seen.end.update(said)
        notes.events[1]["data"].update(said)
        return {lie.kind for lie in lies(notes, _answer)}

    assert lies_of(3) == set()
    assert lies_of(4) == {"rows_given_up"}

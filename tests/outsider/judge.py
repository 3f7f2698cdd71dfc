"""Compares what an outsider was given with what the documents promise. Pure.

`answer` says what the engine must have said to a body: HTTP status and body.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.outsider.notes import Notes, Seen

Answer = Callable[[Mapping[str, Any]], tuple[int, Mapping[str, Any]]]

#: docs/lifecycle.md: what may come after each status, and after those in turn.
_LATER: Mapping[str, str] = {
    "validating": "in_progress finalizing cancelling completed failed expired cancelled",
    "in_progress": "finalizing cancelling completed failed expired cancelled",
    "finalizing": "cancelling completed expired cancelled",
    "cancelling": "cancelled",
    "completed": "",
    "failed": "",
    "expired": "",
    "cancelled": "",
}
_FINAL = {status for status, later in _LATER.items() if not later}
_OK, _CONFLICT, _NOT_FOUND = 200, 409, 404
#: docs/reliability.md: the code of a row that engines died of. Where engines are killed all the
#: time, it may hit a row that is innocent, and hardly ever does.
_GIVEN_UP, _MAX_GIVEN_UP = "engine_died", 3
#: docs/openai-compatibility.md, E2: the rows of a cancelled batch that did not run.
_NOT_RUN = "batch_cancelled"


class Lie(NamedTuple):
    """Something that the documents do not allow."""

    kind: str
    about: str
    says: str


def lies(notes: Notes, answer: Answer) -> list[Lie]:
    """Everything that was not as promised."""
    found = [Lie("surprise", "HTTP", text) for text in notes.surprises]
    given_up: list[str] = []
    for seen in notes.batches:
        found += _of_batch(seen, answer, given_up)
    if len(given_up) > _MAX_GIVEN_UP:
        found.append(Lie("rows_given_up", "the run", f"{len(given_up)} rows: {given_up[:5]}"))
    found += _of_listing(notes)
    found += _of_events(notes)
    return found


def _of_batch(seen: Seen, answer: Answer, given_up: list[str]) -> Iterator[Lie]:
    if len(seen.ids) != 1:
        yield Lie("not_one_batch", seen.key, f"its ids are {sorted(seen.ids)}")
        return
    [batch_id] = seen.ids
    for before, after in zip(seen.statuses, seen.statuses[1:], strict=False):
        if before != after and after not in _LATER[before].split():
            yield Lie("went_back", batch_id, f"{after} after {before}")
    if seen.strangers_status not in (None, _NOT_FOUND):
        yield Lie("shown_to_a_stranger", batch_id, f"answered with {seen.strangers_status}")
    if seen.end is None:
        yield Lie("not_ended", batch_id, f"it was last {seen.statuses[-1:]}")
        return
    allowed = {"completed"}
    if seen.cancel_status == _OK:
        allowed = {"cancelled"}
    if seen.end["status"] not in allowed:
        yield Lie("wrong_end", batch_id, f"{seen.end['status']}, not {sorted(allowed)}")
        return
    yield from _of_files(batch_id, seen)
    if not _was_cancelled_unread(seen):
        yield from _of_lines(batch_id, seen, answer, given_up)


def _was_cancelled_unread(seen: Seen) -> bool:
    """Whether it was cancelled while it was validating: nobody has counted its rows then."""
    assert seen.end is not None
    counts = seen.end["request_counts"]
    is_unread = "in_progress" not in seen.statuses and not any(counts.values()) and not seen.files
    return seen.end["status"] == "cancelled" and is_unread


def _of_files(batch_id: str, seen: Seen) -> Iterator[Lie]:
    assert seen.end is not None
    for kind in ("output", "error"):
        file_id = seen.end[f"{kind}_file_id"]
        if (file_id is not None) != (kind in seen.files):
            yield Lie("file_missing", batch_id, f"its {kind} file is {file_id}")
        elif kind in seen.files:
            said = seen.file_objects.get(kind, {}).get("bytes")
            if said != len(seen.files[kind]) or not seen.files[kind].endswith(b"\n"):
                text = f"its {kind} file has {len(seen.files[kind])} bytes, and says {said}"
                yield Lie("file_differs", batch_id, text)


def _of_lines(batch_id: str, seen: Seen, answer: Answer, given_up: list[str]) -> Iterator[Lie]:
    assert seen.end is not None
    places = {custom_id: number for number, (custom_id, _) in enumerate(seen.rows)}
    bodies = dict(seen.rows)
    found: Counter[str] = Counter()
    counts: dict[str, int] = {}
    for kind in ("output", "error"):
        lines = [json.loads(line) for line in seen.files.get(kind, b"").splitlines()]
        counts[kind] = len(lines)
        order = [places.get(line["custom_id"], -1) for line in lines]
        if order != sorted(order):
            yield Lie("out_of_order", batch_id, f"in its {kind} file")
        for line in lines:
            found[line["custom_id"]] += 1
            body = bodies.get(line["custom_id"])
            wrong = (
                "it was never asked for"
                if body is None
                else _wrong(
                    line, body, kind, answer, was_cancelled=seen.end["status"] == "cancelled"
                )
            )
            if wrong == _GIVEN_UP:
                given_up.append(f"{batch_id} {line['custom_id']}")
            elif wrong:
                yield Lie("wrong_result", batch_id, f"{line['custom_id']}: {wrong}")
    for custom_id in places:
        if found[custom_id] != 1:
            kind = "row_twice" if found[custom_id] else "row_missing"
            yield Lie(kind, batch_id, f"{custom_id} has {found[custom_id]} lines")
    wanted = {
        "total": len(places),
        "completed": counts["output"],
        "failed": counts["error"],
    }
    if seen.end["request_counts"] != wanted:
        yield Lie("wrong_counts", batch_id, f"{seen.end['request_counts']}, not {wanted}")


def _wrong(
    line: Mapping[str, Any],
    body: Mapping[str, Any],
    kind: str,
    answer: Answer,
    *,
    was_cancelled: bool,
) -> str:
    """What is wrong with a line; nothing if it is right."""
    response, error = line["response"], line["error"]
    if error is not None:
        if kind == "error" and error["code"] == _NOT_RUN and was_cancelled:
            return ""
        return f"it has the error {error['code']}"
    status, said = response["status_code"], response["body"]
    code = (said.get("error") or {}).get("code")
    if kind == "error" and code == _GIVEN_UP:
        return _GIVEN_UP
    if (kind == "output") != (status == _OK):
        return f"the status {status} is in the {kind} file"
    if (status, said) != answer(body):
        return f"another answer than the engine's, with the status {status}"
    return ""


def _of_listing(notes: Notes) -> Iterator[Lie]:
    counts = Counter(notes.listed)
    ours = {batch_id for seen in notes.batches for batch_id in seen.ids}
    for batch_id in sorted(ours | counts.keys()):
        if counts[batch_id] != (batch_id in ours):
            says = f"listed {counts[batch_id]} times; asked for: {batch_id in ours}"
            yield Lie("wrong_listing", batch_id, says)


def _of_events(notes: Notes) -> Iterator[Lie]:
    """docs/bus-events.md, the rules for subscribers."""
    by_batch: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in notes.events:
        batch_id = event["data"]["id"]
        first = by_batch[batch_id].setdefault(event["id"], event)
        if first != event:
            yield Lie("event_contradicts", batch_id, f"{event['id']} says two things")
        if event["subject"] != batch_id or not event["source"].endswith(f"/batches/{batch_id}"):
            yield Lie("event_contradicts", batch_id, f"it comes from {event['source']}")
    ours = {batch_id for seen in notes.batches for batch_id in seen.ids}
    for batch_id in sorted(by_batch.keys() - ours):
        yield Lie("event_of_a_stranger", batch_id, "nobody here asked for it")
    for seen in notes.batches:
        if len(seen.ids) == 1 and seen.end is not None:
            [batch_id] = seen.ids
            yield from _of_end(batch_id, seen.end, list(by_batch[batch_id].values()))


def _of_end(
    batch_id: str, end: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> Iterator[Lie]:
    sequences = [event["sequence"] for event in events]
    if len(set(sequences)) < len(sequences):
        yield Lie("event_contradicts", batch_id, "two events have one sequence")
    ends = [event for event in events if event["type"].removeprefix("batch.") in _FINAL]
    if len(ends) != 1:
        yield Lie("event_missing", batch_id, f"its ends are {[one['type'] for one in ends]}")
        return
    [last] = ends
    if last["sequence"] != max(sequences):
        yield Lie("event_contradicts", batch_id, "an event came after its end")
    said = last["data"]
    for name in ("status", "request_counts", "output_file_id", "error_file_id"):
        if said[name] != end[name]:
            says = f"its last event says {name} {said[name]}, HTTP {end[name]}"
            yield Lie("event_contradicts", batch_id, says)

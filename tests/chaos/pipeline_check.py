"""Decides from the evidence whether a pipeline lost a row, doubled it, or made it up. Pure."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from shared import ids
from tests.chaos.evidence import Evidence
from tests.chaos.pipeline_rows import (
    FIRST,
    SECOND,
    first_answer,
    is_wanted,
    second_answer,
    twin_of,
)

#: Kind, what it is about, and what is wrong with it.
_Broken = tuple[str, str, str]
_ENDS = {False: {"completed"}, True: {"completed", "cancelled"}}
#: A row that was given up because engines died of it; the checker of batches counts those.
_ENGINE_DIED = "engine_died"


def broken_pipeline_promises(evidence: Evidence) -> Iterator[_Broken]:
    """Every broken promise; none if all were kept."""
    accepted = {one["pipeline"] for one in evidence.published if one["what"] == "piped"}
    for intent in evidence.published:
        if intent["what"] == "pipeline":
            is_accepted = intent["pipeline"] in accepted
            yield from _of_pipeline(intent, evidence, is_accepted=is_accepted)


def pipeline_batches(evidence: Evidence) -> set[str]:
    """The batches of the pipelines that clients intended."""
    return {
        ids.batch_id(one["tenant"], ids.stage_message_id(one["pipeline"], stage))
        for one in evidence.published
        if one["what"] == "pipeline"
        for stage in (FIRST, SECOND)
    }


def _of_pipeline(
    intent: Mapping[str, Any], evidence: Evidence, *, is_accepted: bool
) -> Iterator[_Broken]:
    about = intent["pipeline"]
    record = evidence.redis.get(f"pipeline:{about}")
    if record is None:
        if is_accepted or f"pipelines/{about}/pipeline.json" in evidence.objects:
            yield "pipeline_lost", about, "there is no record of it"
        return
    if "ended_at" not in record:
        yield "pipeline_not_ended", about, "it still runs"
        return
    if record["status"] not in _ENDS[intent["cancel"]]:
        yield "pipeline_wrong_end", about, f"it is {record['status']}: {record.get('error')}"
        return
    yield from _told(intent, record["status"], evidence)
    for batch_id in (
        ids.batch_id(intent["tenant"], ids.stage_message_id(about, stage))
        for stage in (FIRST, SECOND)
    ):
        status = evidence.redis.get(f"batch:{batch_id}", {}).get("status")
        if status not in ("completed", "cancelled"):
            yield "pipeline_batch", about, f"its batch {batch_id} is {status}"
    output = _lines(record, "output", evidence)
    errors = _lines(record, "error", evidence)
    if output is None or errors is None:
        yield "pipeline_file_missing", about, "a file of it is gone"
        return
    yield from _rows(intent, output, errors, is_whole=record["status"] == "completed")


def _told(intent: Mapping[str, Any], status: str, evidence: Evidence) -> Iterator[_Broken]:
    """Every subscriber and every webhook learns of the end, and of no other one."""
    about, end = intent["pipeline"], f"pipeline.{status}"
    told = {
        queue: {(one["id"], one["type"]) for one in events if one["data"]["id"] == about}
        for queue, events in evidence.received.items()
        if queue.split(".")[1] == intent["tenant"]
    }
    told["webhooks"] = {
        (one["id"], one["type"]) for one in evidence.webhooks if one["batch"] == about
    }
    for listener, ends in told.items():
        if [kind for _, kind in ends] != [end]:
            yield "pipeline_untold", about, f"{listener} got {sorted(ends)}, it is {status}"


def _rows(
    intent: Mapping[str, Any],
    output: list[dict[str, Any]],
    errors: list[dict[str, Any]],
    *,
    is_whole: bool,
) -> Iterator[_Broken]:
    about = intent["pipeline"]
    lines = Counter(one["custom_id"] for one in (*output, *errors))
    for name, count in lines.items():
        if count > 1:
            yield "pipeline_row_twice", about, f"{name} has {count} lines"
    rows = {f"{intent['asks']}.{row}": row for row in intent["rows"] if is_wanted(row)}
    for name in lines.keys() - rows.keys():
        yield "pipeline_row_invented", about, name
    numbers = [rows[one["custom_id"]] for one in output if one["custom_id"] in rows]
    if numbers != sorted(numbers):
        yield "pipeline_out_of_order", about, "its rows are not in the order of the input"
    came = {one["custom_id"]: one for one in output}
    failed = {one["custom_id"]: one for one in errors}
    yield from _wrong(intent, rows, came, failed)
    yield from _missing(intent, rows, came, failed, is_whole=is_whole)


def _wrong(
    intent: Mapping[str, Any],
    rows: Mapping[str, int],
    came: Mapping[str, dict[str, Any]],
    failed: Mapping[str, dict[str, Any]],
) -> Iterator[_Broken]:
    """Lines that say something else than they should."""
    about = intent["pipeline"]
    for name, row in rows.items():
        if name in came and came[name] != _whole(intent, row):
            yield "pipeline_wrong_row", about, f"{name} has other columns"
        if name in failed and not _may_fail(intent, row, failed[name]):
            yield "pipeline_wrong_row", about, f"{name}: {failed[name]['error']['code']}"


def _missing(
    intent: Mapping[str, Any],
    rows: Mapping[str, int],
    came: Mapping[str, dict[str, Any]],
    failed: Mapping[str, dict[str, Any]],
    *,
    is_whole: bool,
) -> Iterator[_Broken]:
    """Rows without a line, and of those that are alike more than one."""
    about = intent["pipeline"]
    groups: defaultdict[int, set[str]] = defaultdict(set)
    for name, row in rows.items():
        if first_answer(intent, row) is None:
            if is_whole and name not in failed:
                yield "pipeline_row_missing", about, f"{name} was refused, and nobody says so"
        elif failed.get(name, {}).get("stage") != FIRST:
            groups[twin_of(row)].add(name)
    for twin, names in groups.items():
        found = names & (came.keys() | failed.keys())
        if len(found) > 1 or (is_whole and not found):
            kind = "pipeline_row_twice" if found else "pipeline_row_missing"
            yield kind, about, f"{len(found)} of the rows {sorted(names)}, alike as {twin}"


def _whole(intent: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The line of a row that came through."""
    return {
        "custom_id": f"{intent['asks']}.{row}",
        "n": row,
        "twin": twin_of(row),
        "answer": first_answer(intent, row),
        "second": second_answer(intent, row),
    }


def _may_fail(intent: Mapping[str, Any], row: int, error: Mapping[str, Any]) -> bool:
    if error["error"]["code"] == _ENGINE_DIED:
        return True
    is_refused = first_answer(intent, row) is None
    return is_refused and (error["stage"], error["error"]["code"]) == (FIRST, "refused")


def _lines(record: Mapping[str, str], kind: str, evidence: Evidence) -> list[dict[str, Any]] | None:
    """The lines of a file; None if it is missing."""
    if not (file_id := record.get(f"{kind}_file_id")):
        return []
    file = evidence.redis.get(f"file:{file_id}")
    body = evidence.bodies.get(file["key"]) if file else None
    return None if body is None else [json.loads(line) for line in body.splitlines()]

"""The checker finds every kind of broken promise, each planted into evidence in order."""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shared import ids
from tests.chaos.checker import absorbed, check, run_after_answer
from tests.chaos.evidence import Evidence
from tests.chaos.rows import REAL_MODEL, answer, expected, is_answer, lines, request

TENANT, MODEL, KEY = "acme", "alpha", "run-1"
BATCH = ids.batch_id(TENANT, f"http:{KEY}")
ROWS = list(range(40))
QUEUE = "sub.acme.one"
NOW = 1_795_165_000.0
FOLDER = f"batches/{BATCH}"

Plant = Callable[[Evidence], object]


def in_order() -> Evidence:
    """A run in which one batch of two slices has ended as it should."""
    results: dict[str, list[bytes]] = {"output": [], "error": []}
    tokens = [0, 0]
    for row, (custom_id, asked) in enumerate(expected(KEY, ROWS, MODEL)):
        said = answer(asked)
        kind = "output" if said.status == 200 else "error"
        line = {
            "id": ids.result_id(BATCH, row),
            "custom_id": custom_id,
            "response": {"status_code": said.status, "request_id": "r", "body": said.body},
            "error": None,
        }
        results[kind].append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        usage = said.body.get("usage", {"prompt_tokens": 0, "completion_tokens": 0})
        tokens[0] += usage["prompt_tokens"]
        tokens[1] += usage["completion_tokens"]
    bodies = {
        f"{FOLDER}/output_committed/{kind}.jsonl": b"".join(found)
        for kind, found in results.items()
    }
    counts = {"total": len(ROWS), **_counts(results)}
    record = {
        "id": BATCH,
        "status": "completed",
        "key": "files/acme/file-in",
        "plan": "p",
        **{name: str(count) for name, count in counts.items()},
        "input_tokens": str(tokens[0]),
        "output_tokens": str(tokens[1]),
    }
    redis: dict[str, Any] = {
        f"batch:{BATCH}": record,
        "file:file-in": {"key": "files/acme/file-in", "bytes": "9"},
        f"parts:{BATCH}": {
            str(index): json.dumps([f"{FOLDER}/parts/{index:06d}-2.jsonl", "e", 1, 1, 20, []])
            for index in range(2)
        },
        f"epochs:{BATCH}": {"0": "2", "1": "2"},
        "lane:alpha@cpu:job": {"id": ""},
        "garbage": [
            ["files/acme/file-lost", NOW + 80_000],
            [f"{FOLDER}/parts//", NOW + 80_000],
        ],
    }
    commit: dict[str, Any] = {}
    for kind in results:
        key = f"{FOLDER}/output_committed/{kind}.jsonl"
        body = bodies[key]
        stored = {"key": key, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        record |= {f"{kind}_file_id": f"file-{kind}", f"{kind}_object": json.dumps(stored)}
        redis[f"file:file-{kind}"] = {"key": key, "bytes": str(len(body))}
        commit[kind] = stored
    bodies[f"{FOLDER}/commit-output_committed.json"] = json.dumps(commit).encode()
    bodies[f"{FOLDER}/manifest.json"] = b"{}"
    bodies["files/acme/file-in"] = lines(KEY, ROWS, MODEL)
    intent = {"key": KEY, "batch": BATCH, "tenant": TENANT, "kind": "plain", "door": "http"}
    return Evidence(
        published=[
            {"what": "intended", **intent, "model": MODEL, "rows": ROWS, "padding": 0},
            {"what": "accepted", "key": KEY, "batch": BATCH},
        ],
        watched=[
            {"what": "seen", "batch": BATCH, "status": status}
            for status in ("validating", "in_progress", "completed")
        ],
        received={
            QUEUE: [event(1, "accepted"), event(4, "completed", counts), event(1, "accepted")]
        },
        webhooks=[{"id": "wh_1", "batch": BATCH, "type": "batch.completed"}],
        runs=[
            {"batch": BATCH, "index": 0, "epoch": epoch, "rows": [f"{KEY}.0"]} for epoch in (1, 2)
        ],
        redis=redis,
        objects={
            **{name: len(body) for name, body in bodies.items()},
            "files/acme/file-lost": 4,
            f"{FOLDER}/parts/000000-1.jsonl": 7,
        },
        bodies=bodies,
        queues={QUEUE: 0, "batch.submit.v1": 0},
        at=NOW,
    )


def event(sequence: int, kind: str, counts: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "id": f"evt_{sequence}",
        "type": f"batch.{kind}",
        "sequence": f"{sequence:08d}",
        "data": {"id": BATCH, "request_counts": counts or {"total": 0}},
    }


def test_evidence_in_order_breaks_no_promise() -> None:
    assert check(in_order()) == []


def test_what_was_repeated_without_harm_is_counted() -> None:
    assert absorbed(in_order()) == {
        "slices claimed again": 2,
        "rows run again before their commit": 1,
        "of those, rows that had been answered": 0,
        "rows given an answer of before": 0,
        "events received again": 1,
        "webhooks received again": 0,
    }


def test_a_row_that_runs_after_its_answer_is_counted_each_time() -> None:
    def noted(at: float, *rows: str, batch: str = BATCH) -> dict[str, Any]:
        return {"at": at, "batch": batch, "rows": rows}

    runs = [noted(1, "a", "b"), noted(3, "a", "b"), noted(5, "b"), noted(5, "a", batch="other")]
    answers = [noted(2, "b"), noted(4, "b", "a")]

    assert run_after_answer(runs, answers) == {(BATCH, "b"): 2}


def _record(evidence: Evidence, **changes: str) -> None:
    evidence.redis[f"batch:{BATCH}"].update(changes)


def _lose(evidence: Evidence) -> None:
    del evidence.redis[f"batch:{BATCH}"]


def _drop_line(evidence: Evidence) -> None:
    _rewrite(evidence, lambda found: found[1:])


def _double_line(evidence: Evidence) -> None:
    _rewrite(evidence, lambda found: [found[0], *found])


def _swap_lines(evidence: Evidence) -> None:
    _rewrite(evidence, lambda found: [found[1], found[0], *found[2:]])


def _swap_answers(evidence: Evidence) -> None:
    def swap(found: list[bytes]) -> list[bytes]:
        first, second = json.loads(found[0]), json.loads(found[1])
        first["response"] = second["response"]
        return [json.dumps(first, separators=(",", ":")).encode(), *found[1:]]

    _rewrite(evidence, swap)


def _wrong_custom_id(evidence: Evidence) -> None:
    def rename(found: list[bytes]) -> list[bytes]:
        first = {**json.loads(found[0]), "custom_id": "another"}
        return [json.dumps(first, separators=(",", ":")).encode(), *found[1:]]

    _rewrite(evidence, rename)


def _row_beyond(evidence: Evidence) -> None:
    def add(found: list[bytes]) -> list[bytes]:
        last = {**json.loads(found[-1]), "id": ids.result_id(BATCH, len(ROWS))}
        return [*found, json.dumps(last, separators=(",", ":")).encode()]

    _rewrite(evidence, add)


def _left_out_but_completed(evidence: Evidence) -> None:
    def leave_out(found: list[bytes]) -> list[bytes]:
        error = {"code": "batch_cancelled", "message": ""}
        first = {**json.loads(found[0]), "response": None, "error": error}
        return [json.dumps(first, separators=(",", ":")).encode(), *found[1:]]

    _rewrite(evidence, leave_out, "error")


def _give_up(evidence: Evidence) -> None:
    def give_up(found: list[bytes]) -> list[bytes]:
        body = {"error": {"code": "engine_died", "message": ""}}
        first = json.loads(found[0])
        first["response"] = {**first["response"], "status_code": 500, "body": body}
        return [json.dumps(first, separators=(",", ":")).encode(), *found[1:]]

    _rewrite(evidence, give_up, "error")


def _hit_engines(evidence: Evidence, times: int) -> None:
    kill, cut = ({"kind": "kill", "target": "engine"}, {"kind": "cut", "target": "lane-job>engine"})
    other = {"kind": "cut", "target": "lane-job>redis"}
    evidence.faults += [*[kill] * (times - 1), cut, *[other] * 9]


def _plant_deadly(evidence: Evidence, kind: str = "error") -> None:
    """The first row with an error, or an answer, is the one of which engines die."""
    [found] = [body for name, body in evidence.bodies.items() if name.endswith(f"/{kind}.jsonl")]
    row = ids.row_of_result(found)
    evidence.published[0].update(kind="deadly", deadly=row)
    evidence.redis["dead-rows"] = {ids.result_id(BATCH, row): "{}"}


def _lose_dead_row(evidence: Evidence) -> None:
    _give_up(evidence)
    _plant_deadly(evidence)
    evidence.redis["dead-rows"].clear()


def _ask(evidence: Evidence, message: str, verb: str, *answers: tuple[str, str]) -> None:
    evidence.published.append({"what": "asked", "message": message, "batch": BATCH, "verb": verb})
    evidence.replies += [
        {"message": message, "status": status, "about": about} for status, about in answers
    ]


def _kill_without_effect(evidence: Evidence) -> None:
    evidence.faults += [{"kind": "kill", "target": "gateway-1"}] * 30
    evidence.crashes += ["outbox.published"] * 20
    evidence.redis[f"epochs:{BATCH}"] = {"0": "1", "1": "1"}


_PLANTED: dict[str, tuple[str, Plant]] = {
    "a batch without a record": ("lost", _lose),
    "a batch without a manifest": (
        "lost",
        lambda found: found.objects.pop(f"{FOLDER}/manifest.json"),
    ),
    "a batch under another id": (
        "other_id",
        lambda found: found.published.append({"what": "accepted", "key": KEY, "batch": "batch_2"}),
    ),
    "a batch that nobody asked for": (
        "invented",
        lambda found: found.redis.update(
            {"batch:batch_2": {"id": "batch_2", "status": "failed", "key": "k"}}
        ),
    ),
    "an answer that no client expects": (
        "surprise",
        lambda found: found.published.append(
            {"what": "surprise", "path": "/v1/files", "status": 418, "said": ""}
        ),
    ),
    "a batch that never ended": ("not_ended", lambda found: _record(found, status="finalizing")),
    "a batch that failed without a reason": (
        "wrong_end",
        lambda found: _record(found, status="failed"),
    ),
    "a batch that was cancelled and completed": (
        "wrong_end",
        lambda found: found.published.append({"what": "cancelled", "key": KEY, "status": 200}),
    ),
    "a message that was refused": (
        "dead_letter",
        lambda found: found.letters.append({"key": KEY, "codes": ["expired"]}),
    ),
    "a row without a line": ("row_missing", _drop_line),
    "a row with two lines": ("row_twice", _double_line),
    "rows in another order": ("out_of_order", _swap_lines),
    "a row with another row's answer": ("wrong_result", _swap_answers),
    "a row with another custom id": ("wrong_result", _wrong_custom_id),
    "a row that was left out of a completed batch": ("wrong_result", _left_out_but_completed),
    "a row that was given up though no engine has died": ("row_given_up", _give_up),
    "more kills than can leave everything as it was": ("did_not_bite", _kill_without_effect),
    "an answer to what engines die of": (
        "wrong_result",
        lambda found: _plant_deadly(found, "output"),
    ),
    "a row that kills and is in no list": ("dead_row_missing", _lose_dead_row),
    "a message without a reply": ("reply_missing", lambda found: _ask(found, KEY, "submit")),
    "a message that was refused and made a batch": (
        "reply_contradicts",
        lambda found: _ask(found, KEY, "submit", ("rejected", "quota_exceeded")),
    ),
    "requests that were refused though they came before the end": (
        "reply_contradicts",
        lambda found: _ask(found, f"{KEY}.requests-1", "requests", ("rejected", "not_open")),
    ),
    "requests that were refused when they came again": (
        "reply_contradicts",
        lambda found: _ask(found, "r", "requests", ("accepted", BATCH), ("rejected", "not_open")),
    ),
    "the end of an open batch that was not answered": (
        "reply_missing",
        lambda found: _ask(found, f"{KEY}.close", "close"),
    ),
    "a message that was answered in two ways": (
        "reply_contradicts",
        lambda found: _ask(found, "c", "cancel", ("rejected", "batch_ended"), ("accepted", BATCH)),
    ),
    "a batch that a message cancelled and that completed": (
        "wrong_end",
        lambda found: _ask(found, "c", "cancel", ("accepted", BATCH)),
    ),
    "a row that was never asked for": ("row_invented", _row_beyond),
    "a total that is not the number of rows": (
        "wrong_counts",
        lambda found: _record(found, total="39"),
    ),
    "a count that is not the number of lines": (
        "wrong_counts",
        lambda found: _record(found, completed="1"),
    ),
    "usage that its lines do not add up to": (
        "wrong_usage",
        lambda found: _record(found, output_tokens="1"),
    ),
    "a result file without a record": (
        "file_missing",
        lambda found: found.redis.pop("file:file-output"),
    ),
    "a result file without an object": (
        "file_missing",
        lambda found: found.bodies.pop(f"{FOLDER}/output_committed/output.jsonl"),
    ),
    "a result file of another size": (
        "file_differs",
        lambda found: found.redis["file:file-output"].update(bytes="1"),
    ),
    "a result that no commit names": (
        "file_differs",
        lambda found: found.bodies.pop(f"{FOLDER}/commit-output_committed.json"),
    ),
    "a committed slice that was claimed again": (
        "committed_row_run_again",
        lambda found: found.runs.append({"batch": BATCH, "index": 1, "epoch": 3, "rows": []}),
    ),
    "a slice that was claimed after its commit and did not run": (
        "committed_row_run_again",
        lambda found: found.redis[f"epochs:{BATCH}"].update({"1": "3"}),
    ),
    "an end that a subscriber never heard of": (
        "event_missing",
        lambda found: found.received[QUEUE].pop(1),
    ),
    "two ends": (
        "event_contradicts",
        lambda found: found.received[QUEUE].append(event(5, "failed")),
    ),
    "one event that says two things": (
        "event_contradicts",
        lambda found: found.received[QUEUE].append(event(1, "in_progress")),
    ),
    "an event after the end": (
        "event_contradicts",
        lambda found: found.received[QUEUE].append(event(9, "progress")),
    ),
    "an end with other counts": (
        "event_contradicts",
        lambda found: found.received[QUEUE][1]["data"]["request_counts"].update(completed=1),
    ),
    "an end without a webhook": ("webhook_missing", lambda found: found.webhooks.clear()),
    "a webhook of another end": (
        "webhook_contradicts",
        lambda found: found.webhooks.append({**found.webhooks[0], "type": "batch.failed"}),
    ),
    "one end under two webhook ids": (
        "webhook_contradicts",
        lambda found: found.webhooks.append({**found.webhooks[0], "id": "wh_2"}),
    ),
    "a status that went back": (
        "went_back",
        lambda found: found.watched.append(
            {"what": "seen", "batch": BATCH, "status": "finalizing"}
        ),
    ),
    "a last status that changed": (
        "went_back",
        lambda found: found.watched.append({"what": "seen", "batch": BATCH, "status": "failed"}),
    ),
    "a download that was cut short": (
        "download_differs",
        lambda found: found.watched.append(
            {"what": "downloaded", "batch": BATCH, "kind": "output", "status": 200, "bytes": 1}
        ),
    ),
    "a claim that is left": (
        "left_in_redis",
        lambda found: found.redis.update({"lane:alpha@cpu:claims": [[f"{BATCH}:0", NOW]]}),
    ),
    "a lane job that is left": (
        "left_in_redis",
        lambda found: found.redis["lane:alpha@cpu:job"].update(id="lane-1"),
    ),
    "an outbox entry that is left": (
        "left_in_redis",
        lambda found: found.redis.update({"outbox:events": 1}),
    ),
    "a queue's share that is left": (
        "left_in_redis",
        lambda found: found.redis.update({"enqueued:acme": {"requests": "3"}}),
    ),
    "garbage that nobody swept": (
        "left_in_redis",
        lambda found: found.redis["garbage"].append(["files/acme/file-old", NOW - 1]),
    ),
    "an upload that nobody ended": (
        "left_in_redis",
        lambda found: found.redis.update({"uploads": [["upload_1", NOW - 1]]}),
    ),
    "a part that is left": (
        "left_in_s3",
        lambda found: found.objects.update({f"{FOLDER}/parts/000000-2.jsonl": 7}),
    ),
    "another end's output that is left": (
        "left_in_s3",
        lambda found: found.objects.update({f"{FOLDER}/cancel_committed/output.jsonl": 7}),
    ),
    "a file without a record that is left": (
        "left_in_s3",
        lambda found: found.objects.update({"files/acme/file-orphan": 7}),
    ),
    "a multipart upload that is left": (
        "left_in_s3",
        lambda found: found.multipart.append("files/acme/file-half"),
    ),
    "a message that is left": (
        "left_in_queue",
        lambda found: found.queues.update({"batch.dead.submit": 1}),
    ),
}


@pytest.mark.parametrize(("kind", "plant"), _PLANTED.values(), ids=list(_PLANTED))
def test_a_planted_violation_is_found(kind: str, plant: Plant) -> None:
    evidence = copy.deepcopy(in_order())

    plant(evidence)

    assert kind in {violation.kind for violation in check(evidence)}


def test_a_row_may_be_given_up_after_as_many_deaths_as_that_takes() -> None:
    enough, too_few = copy.deepcopy(in_order()), copy.deepcopy(in_order())
    for evidence, times in ((enough, 4), (too_few, 3)):
        _give_up(evidence)
        _hit_engines(evidence, times)

    assert check(enough) == []
    assert [violation.kind for violation in check(too_few)] == ["row_given_up"]


def test_a_row_of_which_engines_die_is_given_up_and_nothing_else() -> None:
    evidence = copy.deepcopy(in_order())
    _give_up(evidence)
    _plant_deadly(evidence)
    _ask(evidence, KEY, "submit", ("accepted", BATCH), ("accepted", BATCH))
    _ask(evidence, "c", "cancel", ("rejected", "batch_ended"))

    assert check(evidence) == []


def test_a_dead_row_may_leave_the_list_with_a_redis_that_went_back() -> None:
    evidence = copy.deepcopy(in_order())
    _give_up(evidence)
    _plant_deadly(evidence)
    lost = frozenset(evidence.redis["dead-rows"])
    evidence.redis["dead-rows"].clear()

    assert check(replace(evidence, dead_rows_before=lost)) == []


def test_a_few_kills_may_leave_everything_as_it_was() -> None:
    evidence = copy.deepcopy(in_order())
    _kill_without_effect(evidence)
    evidence.crashes.pop()

    assert "did_not_bite" not in {violation.kind for violation in check(evidence)}


def test_a_real_engines_answer_is_known_by_its_length() -> None:
    asked = request(KEY, 1, REAL_MODEL)["body"]
    body = {
        "model": REAL_MODEL,
        "choices": [{"finish_reason": "length", "message": {"content": "nonsense"}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": asked["max_tokens"]},
    }
    shorter = {**body, "usage": {"prompt_tokens": 9, "completion_tokens": asked["max_tokens"] - 1}}

    assert is_answer(asked, 200, body)
    assert not is_answer(asked, 200, shorter)
    assert not is_answer(asked, 400, {"error": {}})


def _counts(results: dict[str, list[bytes]]) -> dict[str, int]:
    return {"completed": len(results["output"]), "failed": len(results["error"])}


def _rewrite(
    evidence: Evidence, change: Callable[[list[bytes]], list[bytes]], kind: str = "output"
) -> None:
    """Change a result file's lines, and let all records say that it was always so."""
    key = f"{FOLDER}/output_committed/{kind}.jsonl"
    found = change(evidence.bodies[key].split(b"\n")[:-1])
    body = b"".join(line + b"\n" for line in found)
    stored = {"key": key, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    counter = "completed" if kind == "output" else "failed"
    _record(evidence, **{f"{kind}_object": json.dumps(stored), counter: str(len(found))})
    evidence.redis[f"file:file-{kind}"]["bytes"] = str(len(body))
    evidence.objects[key], evidence.bodies[key] = len(body), body
    commit = f"{FOLDER}/commit-output_committed.json"
    evidence.bodies[commit] = json.dumps(
        {**json.loads(evidence.bodies[commit]), kind: stored}
    ).encode()

"""Decides from the evidence alone whether anything was lost, doubled or left behind. Pure."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cli.rebuild.rebuild import NUMBERS
from shared import ids
from shared.ledger.packs import pack_of
from shared.lifecycle import FINAL, INITIAL, TRANSITIONS, Event, Status
from shared.storage import READABLE
from tests.chaos.cache_check import asked_key, broken_cache_promises, is_cached
from tests.chaos.evidence import Evidence
from tests.chaos.fleet import OUTSIDER
from tests.chaos.live_check import broken_live_promises
from tests.chaos.pipeline_check import broken_pipeline_promises, pipeline_batches
from tests.chaos.rows import expected, is_answer

#: How a batch may end, by what the client intended.
_ENDS: Mapping[str, frozenset[str]] = {
    "plain": frozenset({"completed"}),
    "cancelled": frozenset({"cancelled", "completed"}),
    "refused": frozenset({"failed"}),
    "expiring": frozenset({"completed", "expired"}),
    "deadly": frozenset({"completed"}),
}
#: The codes that the error lines of rows without an answer may have.
_UNRUN = {"cancelled": "batch_cancelled", "expired": "batch_expired"}
#: A row that was given up because engines died of it. A planted one may have no other code.
_ENGINE_DIED = "engine_died"
#: What takes rows that are in an engine from its lane job, who cannot tell it from a death of them.
_ENGINES = ("engine", "engine-core", "replica", "wave", "raylet", "gcs")
_ENGINE_LINK = "lane-job>engine"
#: So many of those cost an innocent row its result: two of them while it is alone in the engine,
#: which is a moment, so that two rows hardly ever have them together.
_DEATHS_OF_A_ROW = 4
#: What must have been repeated, and absorbed, after this many kills; few kills repeat an event.
_BITES = {"slices claimed again": 50, "events received again": 500}
_OK, _CONFLICT = 200, 409
#: Keys in Redis that must be empty or absent once nothing runs.
_EMPTY = (
    *("status:", "outbox:", "readers:", "enqueued:", "webhook-queue:"),
    *("inflight:", "begun:", "ending:", "live-calls:"),
)
_EMPTY_NAMES = ("deadlines", "deleted", "doomed", "webhooks-due", "webhook-tests")
#: What is swept or ended when its time comes.
_DUE = ("garbage", "uploads", "expiring")
_EMPTY_OF_LANES = ("ready", "suspects", "claims", "active", "waiting", "failure")
_USAGE = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


class Violation(NamedTuple):
    """One broken promise."""

    kind: str
    about: str
    says: str


class Batch(NamedTuple):
    """A batch that a client intended to create."""

    intent: Mapping[str, Any]
    is_accepted: bool
    #: The answer to its cancellation, if there was one.
    cancel: int | None

    @property
    def id(self) -> str:
        batch_id: str = self.intent["batch"]
        return batch_id


def check(evidence: Evidence) -> list[Violation]:
    """Every broken promise; none if all were kept."""
    batches, found = _intended(evidence)
    for batch in batches.values():
        found += _check_batch(batch, evidence)
    found += _check_letters(batches, evidence)
    found += _invented(batches, evidence)
    found += _run_again(evidence)
    found += _check_events(batches, evidence)
    found += _check_webhooks(batches, evidence)
    found += _check_watchers(evidence)
    found += _left_in_redis(evidence)
    found += _left_in_s3(evidence)
    found += _left_in_queues(evidence)
    found += _check_given_up(batches, evidence)
    found += _check_dead_rows(batches, evidence)
    found += _check_replies(evidence)
    found += (Violation(*one) for one in broken_live_promises(evidence))
    found += (Violation(*one) for one in broken_pipeline_promises(evidence))
    found += (Violation(*one) for one in broken_cache_promises(evidence))
    found += _check_bite(evidence)
    return found


def absorbed(evidence: Evidence) -> dict[str, int]:
    """Counts of what went wrong and did no harm. All zeros would mean that nothing was tested."""
    epochs = [
        int(epoch)
        for key, hash_ in evidence.redis.items()
        if key.startswith("epochs:")
        for epoch in hash_.values()
    ]
    events: Counter[tuple[str, str]] = Counter(
        (queue, event["id"]) for queue, events in evidence.received.items() for event in events
    )
    hooks = Counter(hook["id"] for hook in evidence.webhooks)
    rows = Counter((run["batch"], row) for run in evidence.runs for row in run["rows"])
    return {
        "slices claimed again": sum(epoch > 1 for epoch in epochs),
        "rows run again before their commit": sum(count - 1 for count in rows.values()),
        "of those, rows that had been answered": sum(
            run_after_answer(evidence.runs, evidence.answers).values()
        ),
        "rows given an answer of before": sum(
            int(record.get("cached_rows", 0))
            for key, record in evidence.redis.items()
            if key.startswith("batch:")
        ),
        "events received again": sum(count - 1 for count in events.values()),
        "webhooks received again": sum(count - 1 for count in hooks.values()),
    }


def run_after_answer(
    runs: Iterable[Mapping[str, Any]], answers: Iterable[Mapping[str, Any]]
) -> Counter[tuple[str, str]]:
    """How often each row, by batch and name, ran again although the engine had answered it."""
    answered: dict[tuple[str, str], float] = {}
    for answer in answers:
        for row in answer["rows"]:
            answered.setdefault((answer["batch"], row), answer["at"])
    return Counter(
        (run["batch"], row)
        for run in runs
        for row in run["rows"]
        if (run["batch"], row) in answered and run["at"] > answered[run["batch"], row]
    )


def _intended(evidence: Evidence) -> tuple[dict[str, Batch], list[Violation]]:
    found: list[Violation] = []
    intents: dict[str, dict[str, Any]] = {}
    accepted: set[str] = set()
    by_key: defaultdict[str, set[str]] = defaultdict(set)
    cancels = _cancelled_by_message(evidence)
    for entry in evidence.published:
        match entry["what"]:
            case "intended":
                intents[entry["batch"]] = entry
                by_key[entry["key"]].add(entry["batch"])
            case "accepted" if entry["batch"] in by_key[entry["key"]]:
                accepted.add(entry["batch"])
            case "accepted":
                detail = f"was answered with {entry['batch']}"
                found.append(Violation("other_id", entry["key"], detail))
            case "cancelled":
                [batch] = by_key[entry["key"]]
                cancels[batch] = entry["status"]
            case "surprise":
                said = f"{entry['status']}: {entry['said']}"
                found.append(Violation("surprise", entry["path"], said))
            case _:
                pass
    batches = {
        batch_id: Batch(intent, batch_id in accepted, cancels.get(batch_id))
        for batch_id, intent in intents.items()
    }
    return batches, found


def _cancelled_by_message(evidence: Evidence) -> dict[str, int]:
    """The answer as over HTTP, for each batch that was to be cancelled over the bus."""
    said = _replies(evidence)
    return {
        entry["batch"]: _OK if status == "accepted" else _CONFLICT
        for entry in evidence.published
        if entry["what"] == "asked" and entry["verb"] == "cancel"
        for status, _ in said[entry["message"]]
    }


def _replies(evidence: Evidence) -> Mapping[str, set[tuple[str, str]]]:
    """Every answer to each message: whether it was accepted, and the batch, or why not."""
    said: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for reply in evidence.replies:
        said[reply["message"]].add((reply["status"], reply["about"]))
    return said


def _check_replies(evidence: Evidence) -> Iterator[Violation]:
    """Every message that the broker confirmed is answered, and always alike."""
    said = _replies(evidence)
    for entry in evidence.published:
        if entry["what"] != "asked":
            continue
        allowed = {("accepted", entry["batch"])}
        if entry["verb"] == "cancel":
            allowed.add(("rejected", "batch_ended"))
        answers = said[entry["message"]]
        if not answers:
            yield Violation("reply_missing", entry["message"], "it was not answered")
        elif len(answers) > 1 or not answers <= allowed:
            yield Violation(
                "reply_contradicts", entry["message"], f"the answers were {sorted(answers)}"
            )


def _check_dead_rows(batches: Mapping[str, Batch], evidence: Evidence) -> Iterator[Violation]:
    """An operator finds each row that kills engines.

    The list is Redis's alone: no rebuild brings back what it lost.
    """
    known = {*evidence.redis.get("dead-rows", {}), *evidence.dead_rows_before}
    for batch in batches.values():
        if (row := batch.intent.get("deadly")) is not None and batch.is_accepted:
            row_id = ids.result_id(batch.id, row)
            if row_id not in known:
                yield Violation("dead_row_missing", batch.id, f"row {row} is not in the list")


def _check_letters(batches: Mapping[str, Batch], evidence: Evidence) -> Iterator[Violation]:
    """Only a message that came after its own `not_after` may be refused."""
    expiring = {one.intent["key"] for one in batches.values() if one.intent["kind"] == "expiring"}
    for letter in evidence.letters:
        if letter["key"] not in expiring or letter["codes"] != ["expired"]:
            detail = f"was refused: {', '.join(letter['codes'])}"
            yield Violation("dead_letter", str(letter["key"]), detail)


def _check_batch(batch: Batch, evidence: Evidence) -> Iterator[Violation]:
    record = evidence.redis.get(f"batch:{batch.id}")
    has_manifest = f"batches/{batch.id}/manifest.json" in evidence.objects
    if record is not None and (pack := pack_of(record)):
        has_manifest |= batch.id in _packed(pack, evidence)
    if record is None:
        # A message that came after its `not_after` makes no batch and is a dead letter.
        is_refused = any(letter["key"] == batch.intent["key"] for letter in evidence.letters)
        may_be_absent = not batch.is_accepted or is_refused
        if not may_be_absent or has_manifest:
            yield Violation("lost", batch.id, "there is no record of it")
        return
    if not has_manifest:
        yield Violation("lost", batch.id, "there is no manifest of it")
    status = record["status"]
    if status not in FINAL:
        yield Violation("not_ended", batch.id, f"it is still {status}")
        return
    allowed = _ENDS[batch.intent["kind"]]
    if batch.cancel == _OK:
        allowed = frozenset({"cancelled"})
    elif batch.cancel == _CONFLICT:
        allowed = frozenset({"completed"})
    if status not in allowed:
        why = record.get("first_error", "")
        yield Violation("wrong_end", batch.id, f"it is {status}, not {sorted(allowed)}: {why}")
        return
    yield from _check_results(batch, record, evidence)


def _packed(key: str, evidence: Evidence) -> set[str]:
    """The batches whose manifests are in a pack."""
    first = int(key.rpartition("/")[2].removesuffix(".jsonl"))
    lines = evidence.bodies.get(key, b"")[first:].splitlines()
    return {json.loads(line)["manifest"]["id"] for line in lines}


def _check_results(
    batch: Batch, record: Mapping[str, str], evidence: Evidence
) -> Iterator[Violation]:
    """Files, lines, counts and usage of an ended batch."""
    intent = batch.intent
    rows = intent["rows"] if "plan" in record else []
    made = {"padding": intent["padding"], "deadly": intent.get("deadly")}
    wanted = list(expected(asked_key(intent), rows, intent["model"], **made))
    output = _lines((yield from _file(batch, record, "output", evidence)))
    error = _lines((yield from _file(batch, record, "error", evidence)))
    answered = yield from _check_lines(batch, record, wanted, "output", output)
    failed = yield from _check_lines(batch, record, wanted, "error", error)
    lines_of = Counter([*answered, *failed])
    for row in range(len(wanted)):
        if lines_of[row] != 1:
            kind = "row_missing" if lines_of[row] == 0 else "row_twice"
            yield Violation(kind, batch.id, f"row {row} has {lines_of[row]} lines")
    counts = {"total": len(wanted), "completed": len(answered), "failed": len(failed)}
    counts["cached_rows"] = sum(map(is_cached, output))
    for name, count in counts.items():
        if int(record.get(name, 0)) != count:
            detail = f"{name} is {record.get(name)}, and it has {count}"
            yield Violation("wrong_counts", batch.id, detail)
    usage = [sum(tokens) for tokens in zip(*map(_tokens, output), strict=True)] or [0] * 4
    if usage != [int(record.get(name, 0)) for name in _USAGE]:
        says = f"its lines say {usage}, and it {[record.get(name) for name in _USAGE]}"
        yield Violation("wrong_usage", batch.id, says)


def _check_lines(
    batch: Batch,
    record: Mapping[str, str],
    wanted: Sequence[tuple[str, Mapping[str, Any]]],
    kind: str,
    lines: Sequence[bytes],
) -> Generator[Violation, None, list[int]]:
    """The rows that have a line in this file, as its return value."""
    found: list[int] = []
    for line in lines:
        row = ids.row_of_result(line)
        if found and row <= found[-1]:
            yield Violation("out_of_order", batch.id, f"row {row} in the {kind} file")
        found.append(row)
        if row >= len(wanted):
            yield Violation("row_invented", batch.id, f"row {row} of {len(wanted)}")
        elif reason := _wrong_line(json.loads(line), *wanted[row], kind, record["status"]):
            yield Violation("wrong_result", batch.id, f"row {row}: {reason}")
    return found


def _lines(body: bytes) -> list[bytes]:
    return body.split(b"\n")[:-1]


def _tokens(line: bytes) -> tuple[int, int, int, int]:
    """As _USAGE has them, of a result line; a cached one has taken none."""
    if is_cached(line):
        return 0, 0, 0, 0
    usage = ((json.loads(line)["response"] or {}).get("body") or {}).get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return usage.get("prompt_tokens", 0), cached, usage.get("completion_tokens", 0), 0


def _file(
    batch: Batch, record: Mapping[str, str], kind: str, evidence: Evidence
) -> Generator[Violation, None, bytes]:
    """A result file's bytes, as its return value."""
    if (file_id := record.get(f"{kind}_file_id")) is None:
        return b""
    stored = json.loads(record[f"{kind}_object"])
    file = evidence.redis.get(f"file:{file_id}")
    body = evidence.bodies.get(stored["key"])
    if file is None or body is None:
        missing = "record" if file is None else "object"
        yield Violation("file_missing", batch.id, f"the {kind} file has no {missing}")
        return b""
    sizes = {len(body), int(file["bytes"]), stored["size"], evidence.objects[stored["key"]]}
    digest = hashlib.sha256(body).hexdigest()
    if len(sizes) > 1 or digest != stored["sha256"] or file["key"] != stored["key"]:
        yield Violation("file_differs", batch.id, f"the {kind} file is not what its records say")
    commits = [
        json.loads(text)
        for name, text in evidence.bodies.items()
        if name.startswith(f"batches/{batch.id}/commit-")
    ]
    if not any((commit[kind] or {}).get("sha256") == digest for commit in commits):
        yield Violation("file_differs", batch.id, f"no commit names the {kind} file")
    return body


def _wrong_line(
    line: Mapping[str, Any], custom_id: str, asked: Mapping[str, Any], kind: str, status: str
) -> str:
    """What is wrong with a result or error line; nothing if it is correct."""
    if line["custom_id"] != custom_id:
        return f"its custom_id is {line['custom_id']}"
    response = line["response"]
    if response is None:
        code = (line["error"] or {}).get("code")
        return "" if kind == "error" and code == _UNRUN.get(status) else f"error {code}"
    if kind == "error" and _is_given_up(response):
        # `_check_given_up` limits how many other rows may have it.
        return ""
    if (response["status_code"] == _OK) != (kind == "output"):
        return f"{response['status_code']} in the {kind} file"
    is_right = is_answer(asked, response["status_code"], response["body"])
    return "" if is_right else "it is another row's answer"


def _check_given_up(batches: Mapping[str, Batch], evidence: Evidence) -> Iterator[Violation]:
    """No more rows may have been given up than engines can have died of."""
    hits = sum(
        fault["target"] in _ENGINES if fault["kind"] == "kill" else fault["target"] == _ENGINE_LINK
        for fault in evidence.faults
    )
    rows = [
        (batch_id, ids.row_of_result(line))
        for batch_id in batches
        for line in _lines(_error_body(batch_id, evidence))
        if _is_given_up(json.loads(line)["response"])
        and ids.row_of_result(line) != batches[batch_id].intent.get("deadly")
    ]
    for batch_id, row in rows[hits // _DEATHS_OF_A_ROW :]:
        detail = f"row {row} is one of {len(rows)}, and {hits} faults have hit engines"
        yield Violation("row_given_up", batch_id, detail)


def _error_body(batch_id: str, evidence: Evidence) -> bytes:
    stored = evidence.redis.get(f"batch:{batch_id}", {}).get("error_object")
    return evidence.bodies.get(json.loads(stored)["key"], b"") if stored else b""


def _is_given_up(response: Mapping[str, Any] | None) -> bool:
    error = ((response or {}).get("body") or {}).get("error") or {}
    return error.get("code") == _ENGINE_DIED


def _check_bite(evidence: Evidence) -> Iterator[Violation]:
    """A run in which nothing had to be absorbed proves nothing."""
    kills = sum(fault["kind"] == "kill" for fault in evidence.faults) + len(evidence.crashes)
    counts = absorbed(evidence)
    for name, min_kills in _BITES.items():
        if kills >= min_kills and not counts[name]:
            yield Violation("did_not_bite", "the run", f"no {name}, after {kills} kills")


def _invented(batches: Mapping[str, Batch], evidence: Evidence) -> Iterator[Violation]:
    known = {key.removeprefix("batch:") for key in evidence.redis if key.startswith("batch:")}
    known |= {name.split("/")[1] for name in evidence.objects if name.startswith("batches/")}
    # The outsider says itself what it has asked for.
    known -= {
        key.removeprefix("batch:")
        for key, record in evidence.redis.items()
        if key.startswith("batch:") and record.get("tenant") == OUTSIDER
    }
    for batch_id in sorted(known - batches.keys() - pipeline_batches(evidence)):
        # A retry is known only by its answer, which may come after the end of the run.
        link = json.loads(evidence.redis.get(f"batch:{batch_id}", {}).get("metadata", "{}"))
        if link.get("retry_of") not in batches:
            yield Violation("invented", batch_id, "no client asked for it")


def _run_again(evidence: Evidence) -> Iterator[Violation]:
    """Claims after the commit; what a frozen lane job runs under its old claim does not count."""
    claims = {(run["batch"], str(run["index"]), run["epoch"]) for run in evidence.runs}
    for key, epochs in evidence.redis.items():
        if key.startswith("epochs:"):
            batch_id = key.removeprefix("epochs:")
            claims |= {(batch_id, index, int(epoch)) for index, epoch in epochs.items()}
    for batch_id, index, epoch in sorted(claims):
        text = evidence.redis.get(f"parts:{batch_id}", {}).get(index)
        committed = _epoch_of(json.loads(text)[0]) if text else epoch
        if epoch > committed:
            detail = f"slice {index} was claimed as {epoch}, committed as {committed}"
            yield Violation("committed_row_run_again", batch_id, detail)


def _epoch_of(part: str) -> int:
    return int(part.rpartition("-")[2].removesuffix(".jsonl"))


def _check_events(batches: Mapping[str, Batch], evidence: Evidence) -> Iterator[Violation]:
    for queue, events in evidence.received.items():
        tenant = queue.split(".")[1]
        of: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for event in events:
            batch_id = event["data"]["id"]
            first = of[batch_id].setdefault(event["id"], event)
            if any(first[name] != event[name] for name in ("type", "sequence", "data")):
                detail = f"{event['id']} to {queue} says two things"
                yield Violation("event_contradicts", batch_id, detail)
        for batch_id, batch in batches.items():
            record = evidence.redis.get(f"batch:{batch_id}")
            if batch.intent["tenant"] == tenant and record and record["status"] in FINAL:
                yield from _check_ends(batch_id, record, list(of[batch_id].values()), queue)


def _check_ends(
    batch_id: str, record: Mapping[str, str], events: Sequence[Mapping[str, Any]], queue: str
) -> Iterator[Violation]:
    ends = [event for event in events if event["type"].removeprefix("batch.") in FINAL]
    if not ends:
        yield Violation("event_missing", batch_id, f"{queue} has not learnt of its end")
        return
    end = max(ends, key=lambda event: event["sequence"])
    if len(ends) > 1 or end["type"] != f"batch.{record['status']}":
        detail = f"{queue} got {[event['type'] for event in ends]}, it is {record['status']}"
        yield Violation("event_contradicts", batch_id, detail)
    if any(event["sequence"] > end["sequence"] for event in events):
        yield Violation("event_contradicts", batch_id, f"{queue} got an event after the end")
    counts = end["data"]["request_counts"]
    if any(counts[name] != int(record.get(name, 0)) for name in ("total", "completed", "failed")):
        yield Violation("event_contradicts", batch_id, f"{queue} got counts {counts}")


def _check_webhooks(batches: Mapping[str, Batch], evidence: Evidence) -> Iterator[Violation]:
    of: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for hook in evidence.webhooks:
        of[hook["batch"]].add((hook["id"], hook["type"]))
    for batch_id in batches:
        record = evidence.redis.get(f"batch:{batch_id}")
        if not record or record["status"] not in FINAL:
            continue
        if not of[batch_id]:
            yield Violation("webhook_missing", batch_id, f"no webhook for {record['status']}")
        elif {kind for _, kind in of[batch_id]} != {f"batch.{record['status']}"}:
            yield Violation("webhook_contradicts", batch_id, f"{sorted(of[batch_id])}")
        elif len(of[batch_id]) > 1:
            yield Violation("webhook_contradicts", batch_id, "one end came under two ids")


def _check_watchers(evidence: Evidence) -> Iterator[Violation]:
    """The statuses seen over HTTP follow the table of transitions."""
    later = _later()
    last: dict[str, str] = {}
    for entry in evidence.watched:
        batch_id = entry["batch"]
        if entry["what"] == "downloaded":
            record = evidence.redis.get(f"batch:{batch_id}", {})
            stored = json.loads(record.get(f"{entry['kind']}_object", "{}"))
            if entry["status"] != _OK or entry["bytes"] != stored.get("size"):
                yield Violation("download_differs", batch_id, f"{entry}")
            continue
        # A stream may repeat what a call showed, because the two are independent.
        if entry["what"] != "seen":
            continue
        before = last.get(batch_id, INITIAL)
        if Status(entry["status"]) not in later[Status(before)]:
            detail = f"seen as {entry['status']} after {before}"
            yield Violation("went_back", batch_id, detail)
        last[batch_id] = entry["status"]
    for batch_id, status in last.items():
        record = evidence.redis.get(f"batch:{batch_id}", {})
        if status in FINAL and status != record.get("status"):
            detail = f"seen as {status}, and it is {record.get('status')}"
            yield Violation("went_back", batch_id, detail)


def _later() -> dict[Status, set[Status]]:
    """Each status, with itself and all that may follow."""
    reach = {status: {status} for status in Status}
    for _ in Status:
        for event, row in TRANSITIONS.items():
            # It takes damaged results, and nothing damages them here.
            for status in Status if event is not Event.PART_BROKEN else ():
                if reach[status] & row.sources:
                    reach[status].add(row.target)
    return reach


def _left_in_redis(evidence: Evidence) -> Iterator[Violation]:
    for key, content in evidence.redis.items():
        is_lanes = key.startswith("lane:") and key.rpartition(":")[2] in _EMPTY_OF_LANES
        if (key in _EMPTY_NAMES or key.startswith(_EMPTY) or is_lanes) and content:
            yield Violation("left_in_redis", key, f"{str(content)[:200]}")
        if key.startswith("lane:") and key.endswith(":job") and content.get("id"):
            yield Violation("left_in_redis", key, f"lane job {content['id']} has not ended")
        if key.startswith("webhook-claims:") and content:
            yield Violation("left_in_redis", key, "a delivery is still claimed")
        if key in _DUE:
            for name, due in content:
                if due <= evidence.at:
                    yield Violation("left_in_redis", key, f"the time of {name} is over")


def _left_in_s3(evidence: Evidence) -> Iterator[Violation]:
    """Objects that nothing refers to and nothing will remove."""
    wanted = {name for name in evidence.objects if name.startswith(NUMBERS)}
    # What a tenant has placed is the tenant's own.
    wanted |= {name for name in evidence.objects if name.startswith("inbox/")}
    # What lane jobs, who may not list the bucket, ask S3 for to know whether it answers.
    wanted.add(READABLE)
    waiting = {name for name, _ in evidence.redis.get("garbage", [])}
    waiting |= {f"uploads/{name}/" for name, _ in evidence.redis.get("uploads", [])}
    for key, content in evidence.redis.items():
        if key.startswith("webhook:"):
            wanted.add(f"webhooks/{content['tenant']}/{key.removeprefix('webhook:')}.json")
        if key.startswith("pipeline:"):
            folder = f"pipelines/{key.removeprefix('pipeline:')}"
            wanted |= {f"{folder}/{name}.json" for name in ("pipeline", "cancel", "ending", "end")}
        if key.startswith("file:"):
            wanted |= {content["key"], f"{content['key']}.json"}
        if key.startswith("batch:"):
            wanted |= {
                f"batches/{content['id']}/manifest.json",
                f"batches/{content['id']}/plan.json",
                f"batches/{content['id']}/cancel.json",
                f"batches/{content['id']}/commit-{_commit_of(content['status'])}.json",
                content["key"],
                content.get("pack", ""),
                content.get("dataset", ""),
            }
            # It was about to leave Redis, or came back.
            records = f"batches/{content['id']}/record-"
            wanted |= {name for name in evidence.objects if name.startswith(records)}
    swept = tuple(name for name in waiting if name.endswith("/edges/"))
    for name in evidence.objects.keys() - wanted - waiting:
        if name.startswith(swept):
            continue
        folder = f"{name.rpartition('/')[0]}/"
        # The sweep a day after a batch's end is for parts that came after the first one.
        is_late = f"{folder}/" in waiting and not _is_committed(name, evidence)
        if folder not in waiting and not is_late:
            yield Violation("left_in_s3", name, f"{evidence.objects[name]} bytes")
    for name in evidence.multipart:
        yield Violation("left_in_s3", name, "a multipart upload that never ended")


def _is_committed(part: str, evidence: Evidence) -> bool:
    _, batch_id, _, name = part.split("/")
    recorded = evidence.redis.get(f"parts:{batch_id}", {}).get(str(int(name.split("-")[0])))
    return recorded is not None and json.loads(recorded)[0] == part


def _commit_of(status: str) -> str:
    events = {"completed": "output", "expired": "expiry", "cancelled": "cancel"}
    # Rows that the engine could not run are results: a batch fails only because of its input.
    return f"{events[status]}_committed" if status in events else "input_rejected"


def _left_in_queues(evidence: Evidence) -> Iterator[Violation]:
    for name, count in evidence.queues.items():
        if count:
            yield Violation("left_in_queue", name, f"{count} messages")

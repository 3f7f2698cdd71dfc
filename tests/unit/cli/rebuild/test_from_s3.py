"""What a rebuild makes of the objects of a batch."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from cli.rebuild.from_s3 import BatchObjects, live_batch
from shared.ledger.commits import Cancellation, LaneFailure
from shared.ledger.plans import Plan
from shared.lifecycle import Status
from shared.slices import Slice, SliceUsage, new_part, part_label
from shared.state.restore import LiveBatch
from shared.storage import Listed
from tests.manifests import a_manifest

BATCH = "batch_1"
NOW = 2_000.0


@dataclass(frozen=True)
class _Made:
    index: int
    epoch: int
    rows: int

    @property
    def label(self) -> str:
        usage = SliceUsage(self.rows - 1, 1, 30, 2, 20, 3)
        return part_label(new_part("", b"12345", b"67", usage))


def _found(*names: str, parts: Iterable[_Made] = ()) -> BatchObjects:
    found = BatchObjects(BATCH)
    for at, name in enumerate(["manifest.json", *names]):
        found.add(name, Listed(f"batches/{BATCH}/{name}", "e", 1, float(at)))
    for part in parts:
        name = f"parts/{part.index:06d}-{part.epoch}.jsonl"
        found.add(name, Listed(f"batches/{BATCH}/{name}", part.label, 7, NOW))
    return found


def _part(index: int, *, epoch: int = 1, rows: int = 10) -> _Made:
    return _Made(index, epoch, rows)


def _plan(lanes: str = "a@x", *numbers: int) -> Plan:
    numbers = numbers or (0, 0, 0)
    slices = [Slice(i, i + 1, 10 * i, 10, 5, lane) for i, lane in enumerate(numbers)]
    fields: dict[str, str | int] = {"lane": lanes, "total": 30, "slices_total": len(slices)}
    return Plan(fields=fields, slices=slices, sequence=2, at_ms=1_100_000)


def _live(
    found: BatchObjects,
    plan: Plan | None,
    *,
    expires_at: int = 9_000,
    cancellation: Cancellation | None = None,
    failures: Iterable[LaneFailure] = (),
    paused: bool = False,
) -> LiveBatch:
    manifest = a_manifest(
        id=BATCH, created_at=1_000, expires_at=expires_at, paused=paused, is_changed=paused
    )
    # What stands in for the ETag is the label.
    labels = {index: listed.etag for index, (_, listed) in found.parts.items()}
    return live_batch(
        found, manifest, plan, cancellation, failures, labels=labels, plan_name="p", now=NOW
    )


def _record(batch: LiveBatch) -> dict[str, str | int]:
    return {name: value for stage in batch.stages for name, value in stage.fields.items()}


@pytest.mark.parametrize(
    ("names", "commit"),
    [
        ([], None),
        (["plan.json", "commit-output_committed.json"], "output_committed"),
        (["commit-output_committed.json", "commit-cancel_committed.json"], "cancel_committed"),
        (["commit-lane_failed.json", "commit-expiry_committed.json"], "expiry_committed"),
        (["commit-output_committed.json", "cancel.json"], None),
        (["commit-cancel_committed.json", "cancel.json"], "cancel_committed"),
        (["plan.json", "commit-input_rejected.json"], "input_rejected"),
    ],
)
def test_the_end_is_what_could_not_have_been_followed_by_another(
    names: list[str], commit: str | None
) -> None:
    assert _found(*names).commit == commit


def test_a_refusal_of_a_batch_that_has_run_since_did_not_come_about() -> None:
    assert _found("commit-input_rejected.json", parts=[_part(0)]).commit is None


def test_the_part_of_the_last_claim_counts() -> None:
    found = _found(parts=[_part(0, epoch=10), _part(0, epoch=9), _part(1)])

    assert {index: epoch for index, (epoch, _) in found.parts.items()} == {0: 10, 1: 1}


def test_without_a_plan_it_waits_for_one() -> None:
    batch = _live(_found(), None)

    assert (batch.status, batch.slices) == (Status.VALIDATING, ())
    assert (batch.stages[0].kind, batch.stages[0].pin.sequence) == ("batch.accepted", 1)


def test_what_has_results_counts_and_the_rest_is_to_be_run() -> None:
    batch = _live(_found(parts=[_part(0), _part(2)]), _plan())

    record = _record(batch)
    assert batch.status is Status.IN_PROGRESS
    assert sorted(batch.parts or ()) == [0, 2]
    assert (record["completed"], record["failed"], record["input_tokens"]) == (18, 2, 60)
    assert (record["slices_committed"], record["in_progress_at"]) == (2, 1_100)
    part, epoch = (batch.parts or {})[0]
    assert (part.output_bytes, part.error_bytes, part.rows, epoch) == (5, 2, 10, 1)


def test_with_all_parts_it_is_about_to_end() -> None:
    assert _live(_found(parts=map(_part, range(3))), _plan()).status is Status.FINALIZING


def test_rows_may_be_left_out_only_where_the_batch_closes() -> None:
    found = _found(parts=[_part(0, rows=4), _part(1)])

    running = _live(found, _plan())
    over = _live(found, _plan(), expires_at=1_999)
    cancelled = _live(found, _plan(), cancellation=Cancellation(1_500))

    assert sorted(running.parts or ()) == [1]
    # Its next run begins with those rows.
    assert {index: part.rows for index, part in (running.kept or {}).items()} == {0: 4}
    assert over.kept == cancelled.kept == {}
    assert sorted(over.parts or ()) == sorted(cancelled.parts or ()) == [0, 1]
    assert (over.status, _record(over)["window_closed"]) == (Status.FINALIZING, 1)
    assert (cancelled.status, _record(cancelled)["cancelling_at"]) == (Status.CANCELLING, 1_500)


def test_a_lane_that_was_given_up_stays_so() -> None:
    found = _found(parts=[_part(0)])
    failures = [LaneFailure("b@y", "out of memory")]

    batch = _live(found, _plan("a@x b@y", 0, 1, 0, 1), failures=failures)
    record = _record(batch)

    assert batch.given_up == {1, 3}
    assert (record["given_up"], record["slices_given_up"]) == (20, 2)
    assert (record["slices_left:a@x"], record["rows_left:a@x"]) == (1, 10)
    assert (record["slices_left:b@y"], record["rows_left:b@y"]) == (0, 0)
    assert record["lane_failed:b@y"] == record["first_error"] == "out of memory"


def test_what_a_client_changed_is_sent_as_it_is_now_and_not_as_it_was() -> None:
    batch = _live(_found(), _plan(), paused=True)

    assert [stage.kind for stage in batch.stages] == ["", "", ""]
    assert batch.last == "batch.updated"
    assert _record(batch)["paused"] == 1

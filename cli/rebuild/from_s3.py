"""The state of a batch, from the names and contents of its objects in S3."""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import msgspec

from cli.rebuild.given_rows import GivenRows
from shared import ids
from shared.ledger.additions import number_of
from shared.ledger.commits import ENDS, Cancellation, Commit, LaneFailure
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PackedPlan
from shared.ledger.plans import Plan
from shared.ledger.reasons import shortened
from shared.lifecycle import Event, Status
from shared.retention import EVENT_HISTORY_SECONDS
from shared.slices import Part, RowCounts, labelled_part
from shared.spent import from_text, of_engines, plus
from shared.state import FileRecord, Pin
from shared.state.restore import EndedBatch, LiveBatch, Stage
from shared.storage import Listed
from shared.submission.accept import to_input_file, to_record


@dataclass
class BatchObjects:
    """The objects of one batch."""

    batch_id: str
    #: When each object was written, in Unix seconds, by its name in the batch's folder; no parts.
    written: dict[str, float] = field(default_factory=dict)
    #: The part of each slice that counts, which is the last claim's: its epoch and the object.
    parts: dict[int, tuple[int, Listed]] = field(default_factory=dict)
    #: Whether a part of its input was copied.
    has_copies: bool = False
    #: The numbers of the additions to it, if it is an open batch.
    additions: set[int] = field(default_factory=set)

    def add(self, name: str, listed: Listed) -> None:
        """One more object, by its name in the batch's folder."""
        if name.startswith("copies/"):
            self.has_copies = True
            if (number := number_of(name)) is not None:
                self.additions.add(number)
        elif not name.startswith("parts/"):
            self.written[name] = listed.modified_at
        elif part := re.fullmatch(r"parts/(\d+)-(\d+)\.jsonl", name):
            index, epoch = map(int, part.groups())
            if index not in self.parts or epoch > self.parts[index][0]:
                self.parts[index] = (epoch, listed)

    @property
    def commit(self) -> Event | None:
        """How it ended; None if it has not."""
        for event in ENDS:
            if f"commit-{event}.json" not in self.written:
                continue
            # The refusal was written but did not happen: the batch has run since.
            is_undone = event is Event.INPUT_REJECTED and self.parts
            # The batch was cancelled after this commit was written and before it happened.
            is_late = event is not Event.CANCEL_COMMITTED and "cancel.json" in self.written
            return None if is_undone or is_late else event
        return None

    @property
    def has_run(self) -> bool:
        """Whether it was ever planned, or ended."""
        return bool(self.parts) or any(
            name == "plan.json" or name.startswith("commit-") for name in self.written
        )

    @property
    def lane_failures(self) -> list[str]:
        """The names of the objects that say that a lane was given up."""
        return [name for name in self.written if name.startswith("lane-failed-")]

    def has_changed_since(self, event: Event) -> bool:
        """Whether a client may have changed the batch after this commit."""
        manifest = self.written.get("manifest.json", 0.0)
        return manifest >= self.written[f"commit-{event}.json"]

    def has(self, key: str) -> bool:
        """Whether the object is there."""
        folder = f"batches/{self.batch_id}/"
        if not key.startswith(folder):
            # A file of a table in a place of the tenant's.
            return True
        name = key.removeprefix(folder)
        return name in self.written or any(one.key == key for _, one in self.parts.values())


async def grouped(
    pages: AsyncIterator[list[Listed]], *, size: int
) -> AsyncGenerator[list[BatchObjects], None]:
    """The batches of a listing in order, `size` at a time."""
    groups: list[BatchObjects] = []
    async for page in pages:
        for listed in page:
            _, batch_id, *rest = listed.key.split("/", 2)
            name = rest[0] if rest else ""
            if not groups or groups[-1].batch_id != batch_id:
                if len(groups) >= size:
                    yield groups
                    groups = []
                groups.append(BatchObjects(batch_id))
            groups[-1].add(name, listed)
    if groups:
        yield groups


def ended_batch(
    found: BatchObjects, commit: Commit, manifest: Manifest | None, *, now: float
) -> EndedBatch:
    """A batch with a commit; `manifest` is given if a client has changed it since."""
    first = msgspec.convert(dict(commit.record), Manifest, strict=False)
    is_foreign = first.input_file_id == ids.input_file_id(found.batch_id)
    return EndedBatch(
        id=found.batch_id,
        record=commit.record,
        event=commit.event,
        pin=Pin(commit.sequence, commit.at_ms),
        fields=shortened(commit.fields),
        files=[file for file in commit.files if found.has(str(file["key"]))],
        garbage=commit.garbage or "",
        garbage_later=commit.garbage_later,
        input_file=to_input_file(first) if is_foreign else None,
        silent=commit.at_ms / 1000 < now - EVENT_HISTORY_SECONDS,
        metadata=None if manifest is None else manifest.metadata,
    )


def live_batch(
    found: BatchObjects,
    manifest: Manifest,
    plan: Plan | None,
    cancellation: Cancellation | None,
    lane_failures: Iterable[LaneFailure],
    *,
    labels: Mapping[int, str],
    given: GivenRows | None = None,
    plan_name: str,
    now: float,
) -> LiveBatch:
    """A batch without a commit; `labels` are those of its parts that have one.

    The plan of an open batch has the slices of what it was `given`.

    `plan_name` is new, as every planner's is.
    """
    first: dict[str, str | int] = {
        "status": Status.VALIDATING,
        "fingerprint": manifest.fingerprint,
        **to_record(manifest),
    }
    is_unchanged = not manifest.is_changed
    stages = [
        _stage(first, "batch.accepted", Pin(1, manifest.created_at * 1000), with_event=is_unchanged)
    ]
    if plan is None:
        return _unplanned(found, manifest, cancellation, stages)
    start = {
        **plan.fields,
        "plan": plan_name,
        "status": Status.IN_PROGRESS,
        "in_progress_at": plan.at_ms // 1000,
    }
    stages.append(_stage(start, "batch.in_progress", plan.pin, with_event=is_unchanged))
    lanes = str(plan.fields["lane"]).split()
    reasons = {failure.lane: failure.reason for failure in lane_failures}
    labelled_parts = {
        index: labelled_part(one.key, one.etag, one.size, labels[index])
        for index, (_, one) in found.parts.items()
        if index < len(plan.slices) and labels.get(index)
    }
    whole = {
        index for index, part in labelled_parts.items() if part.rows == plan.slices[index].rows
    }
    given_up = frozenset(
        index
        for index, slice_ in enumerate(plan.slices)
        if lanes[slice_.lane] in reasons and index not in whole
    )
    takes_rows = given is not None and given.takes_rows
    status, last = _status(
        cancellation,
        has_all=len(whole) + len(given_up) == len(plan.slices) and not takes_rows,
        # An open batch is closed in S3 first, and then it may have all.
        is_closed=manifest.expires_at <= now and not takes_rows,
        now=int(now),
    )
    # Only once the batch is closing may a part lack rows.
    parts = {
        index: (part, found.parts[index][0])
        for index, part in labelled_parts.items()
        if index in whole or (status is not Status.IN_PROGRESS and index not in given_up)
    }
    kept = {
        index: part
        for index, part in labelled_parts.items()
        if index not in parts and index not in given_up
    }
    changes: dict[str, str | int] = {"status": status, **last, **(given.fields if given else {})}
    changes |= _counts(plan, parts, lanes, given_up, reasons)
    changes |= _paused(manifest, status)
    stages.append(Stage(changes))
    return LiveBatch(
        id=found.batch_id,
        status=status,
        stages=stages,
        last=_last(manifest, status),
        input_file=_input_file(manifest),
        plan=plan_name,
        lanes=lanes,
        slices=plan.slices,
        parts=parts,
        kept=kept,
        given_up=given_up,
        names=given.names if given else {},
        has_lost_input=given is not None and given.is_damaged,
    )


def plan_of(packed: PackedPlan, manifest: Manifest) -> Plan:
    """The plan of a batch that was started in the same step that made it."""
    return Plan(
        fields=packed.fields,
        slices=list(packed.slices),
        sequence=2,
        at_ms=manifest.created_at * 1000,
    )


def _unplanned(
    found: BatchObjects, manifest: Manifest, cancellation: Cancellation | None, stages: list[Stage]
) -> LiveBatch:
    status = Status.VALIDATING
    changes: dict[str, str | int] = {}
    if cancellation is not None:
        status = Status.CANCELLING
        changes = {"cancelling_at": cancellation.cancelling_at}
    changes |= {"status": status, **_paused(manifest, status)}
    return LiveBatch(
        id=found.batch_id,
        status=status,
        stages=[*stages, Stage(changes)],
        last=_last(manifest, status),
        input_file=_input_file(manifest),
    )


def _status(
    cancellation: Cancellation | None, *, has_all: bool, is_closed: bool, now: int
) -> tuple[Status, dict[str, str | int]]:
    """The batch's status, and the fields of its record that go with it."""
    if cancellation is not None:
        return Status.CANCELLING, {"cancelling_at": cancellation.cancelling_at}
    if has_all:
        return Status.FINALIZING, {"finalizing_at": now}
    if is_closed:
        return Status.FINALIZING, {"finalizing_at": now, "window_closed": 1}
    return Status.IN_PROGRESS, {}


def _counts(
    plan: Plan,
    parts: Mapping[int, tuple[Part, int]],
    lanes: list[str],
    given_up: frozenset[int],
    reasons: Mapping[str, str],
) -> dict[str, str | int]:
    """The fields that commits, and lanes that were given up, have written into the record."""
    counts: dict[str, str | int] = {}
    if parts:
        sums = [sum(column) for column in zip(*(p.usage for p, _ in parts.values()), strict=True)]
        names = next(iter(parts.values()))[0].usage._fields
        counts = {**dict(zip(names, sums, strict=True)), "slices_committed": len(parts)}
        spent = plus(
            *(
                of_engines(lanes[plan.slices[index].lane], from_text(part.spent))
                for index, (part, _) in parts.items()
            )
        )
        others = reduce(RowCounts.plus, (part.counts for part, _ in parts.values()))
        counts |= {name: count for name, count in others._asdict().items() if count}
        counts |= {"spent": json.dumps(spent, separators=(",", ":"))} if spent else {}
    if reasons:
        counts |= {f"lane_failed:{lane}": reason for lane, reason in reasons.items()}
        counts |= {
            "first_error": next(iter(reasons.values())),
            "slices_given_up": len(given_up),
            "given_up": sum(plan.slices[index].rows for index in given_up),
        }
    if len(lanes) > 1:
        for number, lane in enumerate(lanes):
            left = [
                slice_.rows
                for index, slice_ in enumerate(plan.slices)
                if slice_.lane == number and index not in parts and index not in given_up
            ]
            counts |= {f"slices_left:{lane}": len(left), f"rows_left:{lane}": sum(left)}
    return counts


def _stage(fields: Mapping[str, str | int], kind: str, pin: Pin, *, with_event: bool) -> Stage:
    """A change, with its event under its old number unless the record was changed since."""
    return Stage(fields, kind, pin) if with_event else Stage(fields)


def _paused(manifest: Manifest, status: Status) -> dict[str, str | int]:
    is_paused = manifest.paused and status in (Status.VALIDATING, Status.IN_PROGRESS)
    return {"paused": 1} if is_paused else {}


def _last(manifest: Manifest, status: Status) -> str:
    """The event that announces the status, where no earlier event does."""
    if status in (Status.FINALIZING, Status.CANCELLING):
        return f"batch.{status}"
    return "batch.updated" if manifest.is_changed else ""


def _input_file(manifest: Manifest) -> FileRecord | None:
    return to_input_file(manifest) if manifest.is_foreign else None

"""The named crash points, by the room in which a run passes them. Pure.

tests/architecture holds this list against the code.
"""

from collections.abc import Mapping

_BATCHES = ("submission.manifest_created", "submission.accepted")
_RELAY = ("relay.read", "relay.published", "relay.removed")

POINTS: Mapping[str, tuple[str, ...]] = {
    "gateway": (
        "files.reserved",
        "files.stored",
        "files.recorded",
        "files.kept",
        "files.record_removed",
        "files.deleted",
        "uploads.created",
        "uploads.part_stored",
        "uploads.part_added",
        "uploads.held",
        "uploads.assembled",
        "uploads.completed",
        "gateway.accepted",
        "additions.created",
        "additions.taken",
        "pipelines.created",
        "pipelines.accepted",
        "pipelines.closed",
        "gateway.cancelled",
        "commits.cancelled",
        "gateway.retried",
        *_BATCHES,
        *_RELAY,
    ),
    "dispatcher": (
        "intake.begin",
        "additions.created",
        "additions.taken",
        "intake.packed",
        "intake.accepted",
        "intake.done",
        "intake.acknowledged",
        "planner.begin",
        "datasets.rendered",
        "datasets.kept",
        "planner.copied",
        "planner.sliced",
        "planner.kept",
        "commits.failure_kept",
        "planner.applied",
        "lanes.opened",
        "lanes.submitted",
        "lanes.fed",
        "lanes.buried",
        "lanes.reaped",
        "finaliser.output_written",
        "finaliser.assembled",
        "open_inputs.written",
        "pipelines.handed_over",
        "pipelines.added",
        "pipelines.counted",
        "pipelines.decided",
        "pipelines.files_written",
        "pipelines.end_written",
        "pipelines.ended",
        "finaliser.committed",
        "finaliser.concluded",
        "reaper.removed",
        "reaper.swept",
        "reaper.records_removed",
        "dispatcher.webhook_sent",
        *_RELAY,
    ),
    "lane_job": (
        "lane_job.claimed",
        "lane_job.released",
        "lane_job.closed",
        "sink.rows_run",
        "sink.part_written",
        "sink.kept",
        "sink.committed",
    ),
}

#: Of `batchyard rebuild`, in its order; tests/integration/cli/test_rebuild.py dies at each.
REBUILD_POINTS = (
    "rebuild.begun",
    "rebuild.ended_made",
    "rebuild.live_made",
    "rebuild.batches_done",
    "rebuild.files_done",
)

#: Of batches that are created at once, and share a write;
#: tests/integration/gateway/test_process.py dies at each.
TOGETHER_POINTS = ("together.packed", "together.accepted")

#: Of batches that leave Redis, minutes after their end;
#: tests/integration/dispatcher/test_leaving.py dies at each.
LEAVING_POINTS = ("leaving.kept",)

#: Of output files that are begun early, which only large batches have;
#: tests/integration/dispatcher/test_early_files.py dies at each.
EARLY_POINTS = ("early_files.waits",)

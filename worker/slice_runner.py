"""One slice through its stages: fetch, run, settle. Waves and the lane job use the same ones."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import structlog

from shared import crash
from shared.dead_rows import DeadRow
from shared.errors import InvalidTransitionError, NotFoundError, TransientError
from shared.ledger.commits import fail
from shared.lifecycle import Event, Status
from shared.slices import Claim, Part, ReleaseReason, StrikeRange, part_label
from shared.state import State
from shared.storage import Storage
from worker.engine_errors import (
    Engine,
    EngineFailedError,
    EngineGoneError,
    EngineUnavailableError,
    Result,
)
from worker.row_limiter import RowRoom
from worker.rows import PartBody, assemble, requests
from worker.strikes import to_doubts

log = structlog.get_logger()

#: How often a running slice's batch is looked at; a cancelled one is stopped after about this.
_WATCH_SECONDS = 1.0


class Outcome(StrEnum):
    """How a slice's run ended."""

    DONE = "done"
    #: The engine died with the slice in it.
    STRUCK = "struck"
    #: The engine never saw it.
    UNSEEN = "unseen"
    #: The engine cannot start at all.
    LANE_FAILED = "lane_failed"
    #: The input object is gone, or is not the one that was validated.
    INPUT_LOST = "input_lost"


class SliceResult(NamedTuple):
    """What a run gave; `reason` is the engine's own when the lane failed, or it died."""

    outcome: Outcome
    body: PartBody
    reason: str = ""
    #: With STRUCK: all rows that ever were in an engine when it died.
    doubts: tuple[StrikeRange, ...] = ()
    #: With STRUCK, of the slice that stands for an engine's death where it is counted: the number
    #: of deaths in a row at which the lane has failed.
    most_deaths: int = 0
    #: With it: whether the engine has answered any row before.
    gave_results: bool = False
    #: With DONE: the rows that got an error because engines died of them.
    dead: tuple[DeadRow, ...] = ()


async def fetch(storage: Storage, claim: Claim) -> bytes | None:
    """The slice's bytes of the input object; None when it is gone or was replaced."""
    try:
        return await storage.get(
            claim.key,
            start=claim.slice.start,
            end=claim.slice.end,
            etag=claim.etag,
            bucket=claim.bucket,
            version_id=claim.version_id,
        )
    except NotFoundError:
        return None


class SliceRunner:
    """Runs slices on one engine, with a bounded number of rows in it, until their batches close."""

    def __init__(
        self,
        engine: Engine,
        watch: "BatchWatch",
        *,
        rows_in_engine: int,
        rows_per_engine_call: int,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._step = rows_per_engine_call
        self._room = RowRoom(max(rows_in_engine, rows_per_engine_call))

    async def run(self, claim: Claim, body: bytes | None) -> SliceResult:
        """Run the slice's rows; rows that did not run before the batch closed are left out."""
        empty = assemble(claim.batch_id, claim.slice, [], [])
        if body is None:
            return SliceResult(Outcome.INPUT_LOST, empty)
        lines = requests(claim.slice, body)
        calls = [
            asyncio.ensure_future(self._call(lines[start : start + self._step]))
            for start in range(0, len(lines), self._step)
        ]
        with self._watch.closing(claim.batch_id, lambda: [call.cancel() for call in calls]):
            ended = await asyncio.gather(*calls, return_exceptions=True)
        if broken := [end for end in ended if isinstance(end, Exception)]:
            worst = min(broken, key=gravity)
            strikes = [0] * len(lines)
            for number, end in enumerate(ended):
                if isinstance(end, Exception) and outcome(end) is Outcome.STRUCK:
                    rows = strikes[number * self._step : (number + 1) * self._step]
                    strikes[number * self._step : (number + 1) * self._step] = [1] * len(rows)
            if outcome(worst) is Outcome.STRUCK:
                log.warning("slice.struck", batch_id=claim.batch_id, reason=type(worst).__name__)
            return SliceResult(outcome(worst), empty, last_words(worst), to_doubts(strikes))
        results: list[Result | None] = []
        for number, end in enumerate(ended):
            width = len(lines[number * self._step : (number + 1) * self._step])
            results += [None] * width if isinstance(end, BaseException) else end
        return SliceResult(Outcome.DONE, assemble(claim.batch_id, claim.slice, lines, results))

    async def _call(self, lines: Sequence[bytes]) -> list[Result]:
        async with self._room.taken(len(lines)):
            return await self._engine.run_lines(lines)


def outcome(error: Exception) -> Outcome:
    """What an error of the engine client means for the slice whose rows were in the call."""
    match error:
        case EngineFailedError():
            return Outcome.LANE_FAILED
        case EngineUnavailableError():
            return Outcome.UNSEEN
        case _:
            # An engine that died, and whatever else went wrong with these rows in it: the count of
            # strikes bounds both.
            return Outcome.STRUCK


def gravity(error: Exception) -> int:
    """Of several errors of one run, the one with the lowest number decides."""
    order = (Outcome.LANE_FAILED, Outcome.STRUCK, Outcome.UNSEEN)
    return order.index(outcome(error))


def last_words(error: Exception) -> str:
    """What may be told of the error: what is not our own may hold anything, prompts too."""
    if isinstance(error, EngineFailedError | EngineGoneError | EngineUnavailableError):
        return str(error)
    return f"The engine could not answer: {type(error).__name__}."


class BatchWatch:
    """Looks at the running batches once a second for all their slices together."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._stops: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None

    def closing(self, batch_id: str, stop: Callable[[], object]) -> "_Watched":
        """Call `stop` once when the batch is no longer in progress, while the context is open."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._look())
        return _Watched(self._stops[batch_id], stop)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            ids = [batch_id for batch_id, stops in self._stops.items() if stops]
            self._stops = defaultdict(list, {name: self._stops[name] for name in ids})
            try:
                statuses = await self._state.batches.statuses(ids)
            except TransientError:
                continue
            for batch_id, status in statuses.items():
                if status is not Status.IN_PROGRESS:
                    for stop in self._stops.pop(batch_id, []):
                        stop()


class _Watched:
    def __init__(self, stops: list[Callable[[], object]], stop: Callable[[], object]) -> None:
        self._stops = stops
        self._stop = stop

    def __enter__(self) -> None:
        self._stops.append(self._stop)

    def __exit__(self, *_: object) -> None:
        if self._stop in self._stops:
            self._stops.remove(self._stop)


async def settle(
    state: State, storage: Storage, claim: Claim, result: SliceResult, *, slice_events: bool = False
) -> None:
    """Make the run's end durable: commit its part, or give the slice back.

    The part lies in S3 before the commit; a part whose commit comes second is an orphan under a key
    of its own epoch, and goes with the batch's other parts.
    """
    match result.outcome:
        case Outcome.STRUCK:
            await state.claims.release(
                claim,
                strikes=1,
                reason=ReleaseReason.ENGINE_DIED,
                strike_ranges=result.doubts,
                last_words=result.reason,
                max_deaths=result.most_deaths,
                gave_results=result.gave_results,
            )
        case Outcome.UNSEEN:
            await state.claims.release(claim, reason=ReleaseReason.ENGINE_UNAVAILABLE)
        case Outcome.LANE_FAILED:
            await state.claims.release(
                claim, reason=ReleaseReason.ENGINE_FAILED, engine_failure=result.reason
            )
        case Outcome.INPUT_LOST:
            await _fail(state, storage, claim)
            await state.claims.release(claim, reason=ReleaseReason.INPUT_LOST)
        case Outcome.DONE:
            await _commit(state, storage, claim, result, slice_events=slice_events)


async def _fail(state: State, storage: Storage, claim: Claim) -> None:
    problem = {
        "code": "input_changed",
        "line": None,
        "param": "input_file_id",
        "message": "The input file was replaced or deleted while the batch ran.",
    }
    try:
        await fail(
            state,
            storage,
            claim.batch_id,
            Event.INPUT_LOST,
            {"errors": json.dumps([problem]), "first_error": str(problem["message"])},
        )
    except InvalidTransitionError as late:
        log.warning("batch.fail_late", batch_id=claim.batch_id, status=late.status)


async def _commit(
    state: State, storage: Storage, claim: Claim, result: SliceResult, *, slice_events: bool
) -> None:
    body = result.body
    if not body.rows:
        await state.claims.release(claim)
        return
    crash.point("sink.rows_run")
    key = f"batches/{claim.batch_id}/parts/{claim.index:06d}-{claim.epoch}.jsonl"
    # Ray runs a sink's task again whose worker died, even after its commit, and what came before
    # it as well if that is lost: other answers to the same rows must not replace the first ones.
    label = part_label(len(body.output), body.rows, body.usage)
    stored = await storage.put_once(key, body.output + body.error, label=label)
    crash.point("sink.part_written")
    if stored is None:
        log.warning("part.written_before", batch_id=claim.batch_id, index=claim.index)
        # If it was not committed, the next claim has a key of its own.
        await state.claims.release(claim)
        return
    answer = await state.claims.commit(
        claim,
        Part(stored.key, stored.etag, len(body.output), len(body.error), body.rows, body.usage),
        announced=slice_events,
        dead=result.dead,
    )
    crash.point("sink.committed")
    if answer != "ok":
        log.warning(
            "commit.too_late",
            batch_id=claim.batch_id,
            index=claim.index,
            outcome=answer,
        )
    elif result.dead:
        rows = [row.id for row in result.dead]
        log.error("rows.given_up", lane=claim.lane, batch_id=claim.batch_id, rows=rows)

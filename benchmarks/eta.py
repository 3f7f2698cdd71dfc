"""How good predictions of a batch's end are, in virtual time: `python -m benchmarks.eta`.

The lane of `simulated_fleet` runs batches of ten tenants, of 10 to 3,000 rows, whose answers have
other lengths than are predicted. The estimator is the product's, and knows what the product knows:
results by slice, how far rows are as the engine says every second, its pace as a lane job measures
it, and how earlier batches ended. The engine is a model with the rates of a 7B model on one H100.
"""

import argparse
import heapq
import json
import random
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.simulated_fleet import Batch, EngineModel, Fleet, Row, _Running
from shared.ordering.outlook import (
    LATER,
    REMEMBERED,
    BatchLoad,
    Ended,
    Foreseen,
    Foresight,
    LaneOutlook,
    Stage,
)
from shared.ordering.pace import Done, Pace, kind_of
from shared.ordering.tenant_usage import USAGE_ROWS, TenantKind, TenantUsage
from shared.rows_in_engine import LOOK_SECONDS, RowsInEngine
from worker.pace_meter import PaceMeter

_ENDPOINT = "/v1/chat/completions"
#: Batches whose ends are learned from before any is judged.
WARM = 100
#: Batches that are judged, of one seed and load.
JUDGED = 200
#: Part of the engine's time that the batches need.
LOADS = (0.5, 0.7, 0.9)
#: The weights of the estimator were found on the seeds 1, 5, 6, 21 and 22.
SEEDS = (51, 52, 53, 54, 55)


class Moment(NamedTuple):
    """What was known of a batch at a time, and when it ended."""

    stage: Stage
    lane: LaneOutlook
    batch: BatchLoad
    at: float
    began: float
    ended: float


class _Seen:
    """What the product would know of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.tokens = sum(one.tokens for one in batch.slices)
        self.kind = kind_of(_ENDPOINT, int(self.tokens), len(batch.rows))
        self.starts = [one.rows.start for one in batch.slices]
        self.left = [len(one.rows) for one in batch.slices]
        self.used_by_slice = [(0.0, 0.0)] * len(batch.slices)
        self.done, self.used = 0, 0.0
        self.answered = self.answer_tokens = 0
        self.was_looked_at = False


class WatchedFleet(Fleet):
    """Notes what is known of each batch when it comes, and when a fifth of it is done."""

    def __init__(self, model: EngineModel) -> None:
        super().__init__(model)
        self.moments: list[Moment] = []
        self._seen: dict[str, _Seen] = {}
        self._noted: defaultdict[str, list[tuple[Stage, LaneOutlook, BatchLoad, float]]] = (
            defaultdict(list)
        )
        self._meter = PaceMeter(seats=model.seats)
        self._meter.measure({}, 0.0, rows_claimed=0, is_running=True, known=Pace())
        self._done: dict[str, Done] = {}
        self._usages: dict[TenantKind, TenantUsage] = {}
        self._beat_at = self._told_at = 0.0
        self._told: dict[str, RowsInEngine] = {}

    def _submit(self, batch: Batch) -> None:
        self._seen[batch.id] = _Seen(batch)
        super()._submit(batch)
        self._note("new", batch)

    def _finish(self, ended: _Running) -> None:
        self._beat(len(self._running) + 1 + len(self._rows))
        batch, seen = ended.batch, self._seen[ended.batch.id]
        number = bisect_right(seen.starts, ended.place) - 1
        seen.left[number] -= 1
        row = ended.row
        prompts, answers = seen.used_by_slice[number]
        prompts += row.prompt_tokens - ended.cached
        seen.used_by_slice[number] = prompts, answers + row.output_tokens
        seen.answered += 1
        seen.answer_tokens += row.output_tokens
        super()._finish(ended)
        self._tell()
        if not seen.left[number]:
            self._commit(batch, seen, number)

    def _commit(self, batch: Batch, seen: _Seen, number: int) -> None:
        slice_ = batch.slices[number]
        rows, used = len(slice_.rows), sum(seen.used_by_slice[number])
        seen.done, seen.used = seen.done + rows, seen.used + used
        kind = kind_of(_ENDPOINT, int(slice_.tokens), rows)
        before = self._done.get(kind, Done())
        new = (rows, slice_.tokens, used)
        self._done[kind] = Done(*(old + more for old, more in zip(before, new, strict=True)))
        whose = TenantKind(kind, batch.tenant)
        sums = (rows, slice_.tokens, *seen.used_by_slice[number])
        self._usages[whose] = _after(self._usages.get(whose, TenantUsage()), TenantUsage(*sums))
        is_over = seen.done == len(batch.rows)
        if not seen.was_looked_at and seen.done >= LATER * len(batch.rows) and not is_over:
            seen.was_looked_at = True
            self._note("running", batch)
        if is_over:
            for stage, lane, load, at in self._noted.pop(batch.id):
                moment = Moment(stage, lane, load, at, batch.arrives, self.now)
                self.moments.append(moment)

    def _beat(self, rows_claimed: int) -> None:
        """What the lane job does every second."""
        if self.now - self._beat_at >= 1:
            self._beat_at = self.now
            self._meter.measure(
                dict(self._done),
                self.now,
                rows_claimed=rows_claimed,
                is_running=True,
                known=Pace(),
            )

    def _tell(self) -> None:
        """What the engine says every second."""
        if self.now - self._told_at < LOOK_SECONDS:
            return
        self._told_at = self.now
        inside: defaultdict[str, list[float]] = defaultdict(list)
        for one in self._running:
            left = one.finishes_at - self._decoded
            inside[one.batch.id].append(one.row.output_tokens - left)
        self._told = {}
        for batch_id in self._batches:
            seen, made = self._seen[batch_id], inside[batch_id]
            self._told[batch_id] = RowsInEngine(
                seen.answered, seen.answer_tokens, len(made), int(sum(made))
            )

    def _note(self, stage: Stage, batch: Batch) -> None:
        running = [self._load(one) for one in self._batches.values()]
        lane = LaneOutlook(self._meter.pace, self._model.seats, running, usages=dict(self._usages))
        self._noted[batch.id].append((stage, lane, self._load(batch), self.now))

    def _load(self, batch: Batch) -> BatchLoad:
        seen = self._seen[batch.id]
        return BatchLoad(
            id=batch.id,
            tenant=batch.tenant,
            kind=seen.kind,
            rows=len(batch.rows),
            rows_left=len(batch.rows) - seen.done,
            rows_claimed=sum(
                len(one.rows)
                for one, left in zip(batch.slices[: batch.next_slice], seen.left, strict=False)
                if left
            ),
            tokens=seen.tokens,
            used=seen.used,
            priority=batch.priority,
            in_engine=self._told.get(batch.id),
        )


def _after(before: TenantUsage, more: TenantUsage) -> TenantUsage:
    """As `lua/lib/pace.lua` adds and forgets."""
    sums = [old + new for old, new in zip(before, more, strict=True)]
    scale = 2 if sums[0] > USAGE_ROWS else 1
    return TenantUsage(*(one / scale for one in sums))


def _limit(limit: int, _: Row) -> float:
    return limit


def trace(seed: int, *, batches: int, tenants: int, load: float, model: EngineModel) -> list[Batch]:
    """Batches that together need this part of the engine's time.

    Each tenant has its own lengths of prompts and answers, which vary by batch and row; only the
    limit of the answers is known beforehand.
    """
    random_, time, found = random.Random(seed), 0.0, []
    profiles: dict[str, tuple[float, int, int]] = {}
    for number in range(batches):
        time += random_.expovariate(1.0)
        tenant = f"tenant-{int(tenants * random_.random() ** 2)}"
        if tenant not in profiles:
            profiles[tenant] = (
                random_.uniform(4, 5.5),
                random_.choice((256, 512, 1024)),
                random_.randint(50, 800),
            )
        mean, limit, prompt = profiles[tenant]
        mean += random_.gauss(0, 0.15)
        rows = [
            Row(
                number,
                0,
                max(5, int(prompt * random_.uniform(0.5, 1.5))),
                max(1, min(limit, int(random_.lognormvariate(mean, 0.8)))),
            )
            for _ in range(int(10 * 300 ** random_.random()))
        ]
        found.append(Batch(f"batch-{number}", tenant, time, rows, predicted=partial(_limit, limit)))
    # A sample of all rows tells how long the engine needs for them.
    rows = [row for batch in found for row in batch.rows]
    every = max(1, len(rows) // 30_000)
    alone = Fleet(model)
    alone.run([Batch("all", "one", 0.0, rows[::every])])
    for batch in found:
        batch.arrives *= alone.now * every / load / time
    return found


class Judged(NamedTuple):
    """A prediction, in seconds from its moment, and what came."""

    stage: Stage
    number: int
    middle: float
    late: float
    took: float
    #: Of the whole batch.
    seconds: float

    @property
    def error(self) -> float:
        """How far the middle was off, as a part of the batch's whole time."""
        return abs(self.middle - self.took) / self.seconds


def judged(moments: Iterable[Moment]) -> list[Judged]:
    """What the estimator says at each moment, from the batches that have ended by then."""
    found: list[Judged] = []
    ended: list[Ended] = []
    under_way: list[tuple[float, int, Foreseen]] = []
    for place, moment in enumerate(sorted(moments, key=lambda one: one.at)):
        while under_way and under_way[0][0] <= moment.at:
            at, _, foreseen = heapq.heappop(under_way)
            ended.append(foreseen.ended(at))
        lane = moment.lane._replace(ended=ended[-REMEMBERED:])
        forecast = Foresight(lane, {}).of(moment.batch)
        if forecast is None:
            continue
        heapq.heappush(under_way, (moment.ended, place, Foreseen(forecast.like, moment.at, 0.0)))
        left, number = forecast.after(), int(moment.batch.id.rpartition("-")[2])
        took, seconds = moment.ended - moment.at, moment.ended - moment.began
        found.append(Judged(moment.stage, number, left.middle, left.late, took, seconds))
    return found


def figures(found: Sequence[Judged], stage: Stage) -> dict[str, float]:
    """Of the predictions of a stage once the lane is warm."""
    some = [one for one in found if one.stage == stage and one.number >= WARM]
    errors = sorted(one.error for one in some)
    return {
        "predictions": len(some),
        "median_error": round(statistics.median(errors), 3),
        "error_of_nine_of_ten": round(errors[int(0.9 * len(errors))], 3),
        "within_p50": round(sum(one.took <= one.middle for one in some) / len(some), 3),
        "within_p80": round(sum(one.took <= one.late for one in some) / len(some), 3),
    }


def run(seed: int, load: float, *, batches: int = WARM + JUDGED) -> list[Judged]:
    """The predictions of one trace."""
    fleet = WatchedFleet(EngineModel())
    fleet.run(trace(seed, batches=batches, tenants=10, load=load, model=EngineModel()))
    return judged(fleet.moments)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    arguments = parser.parse_args()
    every: list[Judged] = []
    report: dict[str, object] = {}
    for load in LOADS:
        found = [one for seed in arguments.seeds for one in run(seed, load)]
        report[f"load {load}"] = {
            "at creation": figures(found, "new"),
            "at a fifth": figures(found, "running"),
        }
        every += found
    report["all"] = {"at creation": figures(every, "new"), "at a fifth": figures(every, "running")}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

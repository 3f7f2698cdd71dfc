"""When a batch will end on its lane, as a range, beside the shares of the others. Pure.

It counts in seconds of the engine. Tenants have their shares as in `line.Line`; of the tenant's own
batches those of a higher priority go first, and those of the same priority take turns. How far such
a count is off is learned from the lane's last batches: the range is made of those that were
foreseen most like this one, so that half of them ended before its middle, and four of five before
its late end.

What another tenant has counts in steps of a factor of two, so that no answer measures it.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import ceil, log, log2
from typing import Literal, NamedTuple

from shared.ordering.pace import KindPace, Pace, TokensOfRows, kind_of
from shared.ordering.tenant_usage import TenantKind, TenantUsage, of_all
from shared.rows_in_engine import RowsInEngine

#: A batch's priority if none is asked for.
DEFAULT_PRIORITY = 5
#: Forecasts that a lane keeps with what became of them: two of most batches.
REMEMBERED = 600
#: From this part of its rows on, a batch is foreseen by what it has done.
LATER = 0.2
#: A range is made of so many ended batches: one less than a multiple of five, so that of one more
#: the late end is exactly the fourth fifth.
_NEIGHBOURS: Mapping["Stage", int] = {"new": 19, "running": 9}
#: What is supposed of the part of the count that a batch takes, while few have ended.
_SUPPOSED = (0.6, 0.8, 1.0, 1.25, 1.7)
#: The part of batches that end before the middle, and before the late end.
_MIDDLE, _LATE = 0.5, 0.8
#: Of a batch that takes longer than all that were foreseen like it: from its time so far.
_OVERDUE = (1.25, 1.7)
#: How full of others the engine is, in engines: more makes no difference.
_FULL = 2.0
#: Of rows that are on their way, this part is still to be run.
_ON_THE_WAY = 0.5
#: Of what a batch is counted for, so that nothing is counted as nothing.
_LEAST_SECONDS = 1e-3
#: However near the last answer is, its slice has its result no sooner. Without it, what a few
#: batches took beside next to nothing would make ranges without end.
_COMMIT_SECONDS = 0.5

#: What the pace is from: the batch's own rows, rows of its kind, or all rows of the lane.
Source = Literal["batch", "kind", "lane"]
Stage = Literal["new", "running"]


class BatchLoad(NamedTuple):
    """What a batch has on a lane."""

    id: str
    tenant: str
    kind: str
    #: Rows in all, those without a result, and those of them that the lane job has, about.
    rows: int
    rows_left: int
    rows_claimed: float
    #: Predicted for all rows; 0 if that is not known.
    tokens: float
    #: What the rows with a result took; None if that is not known.
    used: float | None = None
    priority: int = DEFAULT_PRIORITY
    #: When its window closes, in Unix seconds, and on how many lanes it runs.
    expires_at: float = 0.0
    lanes: int = 1
    #: What its lane's engine said of its rows a moment ago; None if it says nothing.
    in_engine: RowsInEngine | None = None

    @property
    def done(self) -> float:
        """The part of its rows that have a result."""
        return 1 - self.rows_left / self.rows if self.rows else 1.0

    @property
    def tokens_left(self) -> float:
        """What is predicted for its rows without a result."""
        return self.tokens * self.rows_left / self.rows if self.rows else 0.0

    @property
    def rows_open(self) -> int:
        """Its rows that are not answered yet: a row has its result only when its slice has."""
        if self.in_engine is None:
            return self.rows_left
        return min(self.rows_left, max(self.in_engine.inside, self.rows - self.in_engine.answered))

    @property
    def waiting(self) -> float:
        """The part of its rows without a result that the lane job does not have yet."""
        return max(0.0, self.rows_left - self.rows_claimed) / max(1, self.rows_left)


def new_load(
    tenant: str, endpoint: str, what: TokensOfRows, *, priority: int = DEFAULT_PRIORITY
) -> BatchLoad:
    """What a batch of these rows would have if it came now."""
    return BatchLoad(
        id="",
        tenant=tenant,
        kind=kind_of(endpoint, *what),
        rows=what.rows,
        rows_left=what.rows,
        rows_claimed=0,
        tokens=what.tokens,
        priority=priority,
    )


class Likeness(NamedTuple):
    """What a batch is compared with others by."""

    tenant: str
    stage: Stage
    #: Seconds that were counted for it.
    counted: float
    #: The part of these that is the engine's work until the batch is through, and not the time in
    #: which its last rows are in it.
    queued: float
    #: How full the engine is with rows of other batches.
    load: float
    #: As of `BatchLoad`.
    waiting: float
    rows: int


class Ended(NamedTuple):
    """What was counted for a batch that has ended, and the seconds that it took from then on."""

    like: Likeness
    took: float


class Foreseen(NamedTuple):
    """What was counted for a batch at a time, in Unix seconds, while its engine was starting."""

    like: Likeness
    at: float
    starts_in: float
    #: The range that was told, in Unix seconds; 0 in records of earlier versions.
    middle_at: float = 0.0
    late_at: float = 0.0

    def ended(self, at: float) -> Ended:
        """What it took, once the batch has ended."""
        return Ended(self.like, max(0.0, at - self.at - self.starts_in))


class LaneOutlook(NamedTuple):
    """What is known of a lane."""

    pace: Pace = Pace()
    #: Rows that its engine computes at once.
    seats: int = 1
    running: Sequence[BatchLoad] = ()
    ended: Sequence[Ended] = ()
    #: Seconds until the engine can run rows; 0 if it can now.
    starts_in: float = 0.0
    #: What rows took by kind and tenant; empty before the lane has committed any.
    usages: Mapping[TenantKind, TenantUsage] = {}


class Range(NamedTuple):
    """Seconds until half of such batches have ended, and until four of five have."""

    middle: float
    late: float


class Forecast(NamedTuple):
    """When a batch may end: in so many seconds from when this was foreseen, in order."""

    ends: tuple[float, ...]
    like: Likeness
    starts_in: float
    source: Source
    #: How many ended batches it rests on.
    batches: int

    def after(self, seconds: float = 0.0) -> Range:
        """The range from then on, if the batch has not ended and nothing else is known of it."""
        left = [end - seconds for end in self.ends if end > seconds]
        if not left:
            return Range(*((factor - 1) * seconds for factor in _OVERDUE))
        middle = _quantile(left, _MIDDLE)
        # Of n known ones, the next exceeds the last with a chance of 1/(n + 1).
        late = left[min(len(left), ceil(_LATE * (len(left) + 1))) - 1]
        return Range(middle, max(middle, late))


class Foresight:
    """Foresees the ends of many batches of one lane."""

    def __init__(self, lane: LaneOutlook, weights: Mapping[str, float]) -> None:
        """`weights` are those of tenants that have another one than 1."""
        self._lane = lane
        self._weights = weights
        self._is_known = lane.pace.whole is not None
        self._whole = lane.pace.whole or KindPace()
        self._usage = of_all(lane.usages.values())
        self._queues: defaultdict[tuple[str, int], _Queue] = defaultdict(_Queue)
        self._tokens: Counter[str] = Counter()
        self._rows = 0
        for batch in lane.running if self._is_known else ():
            tokens = self._tokens_left(batch)
            self._queues[batch.tenant, batch.priority].add(tokens)
            self._tokens[batch.tenant] += round(tokens)
            self._rows += batch.rows_open
        self._own = {batch.id for batch in lane.running}
        self._ended: dict[Stage, list[Ended]] = {
            stage: [one for one in lane.ended if one.like.stage == stage]
            for stage in ("new", "running")
        }

    def of(self, batch: BatchLoad) -> Forecast | None:
        """When the batch will end; None while nothing is known of the lane's pace.

        It may be one of those that run, or one that does not exist yet.
        """
        if not self._is_known:
            return None
        like = self._likeness(batch)
        known = self._neighbours(like)
        ratios = [one.took / one.like.counted for one in known]
        if len(known) < len(_SUPPOSED):
            ratios += _SUPPOSED
        starts_in = self._lane.starts_in
        return Forecast(
            tuple(sorted(starts_in + like.counted * ratio for ratio in ratios)),
            like,
            starts_in,
            self._source(batch),
            len(known),
        )

    def _likeness(self, batch: BatchLoad) -> Likeness:
        stage: Stage = "running" if batch.done >= LATER else "new"
        work = self._work(batch)
        waiting = batch.waiting
        if stage == "new":
            in_engine = self._longest_stay(batch)
        elif batch.in_engine is None:
            # Its longest rows may have begun long ago, and the average is nearer to what is left.
            in_engine = self._average_stay(batch)
            work *= _ON_THE_WAY + (1 - _ON_THE_WAY) * waiting
        else:
            waiting = max(0, batch.rows_open - batch.in_engine.inside) / max(1, batch.rows_open)
            in_engine = max(_COMMIT_SECONDS, self._longest_stay(batch))
            work *= waiting
        counted = work + in_engine + _LEAST_SECONDS
        others = self._rows - (batch.rows_open if batch.id in self._own else 0)
        load = min(_FULL, _step(others) / self._lane.seats)
        return Likeness(batch.tenant, stage, counted, work / counted, load, waiting, batch.rows)

    def _work(self, batch: BatchLoad) -> float:
        """Seconds of the engine until the batch is through, if nothing else comes."""
        mine = self._tokens_left(batch)
        own = mine
        for (tenant, priority), queue in self._queues.items():
            if tenant == batch.tenant and priority > batch.priority:
                own += queue.total
            elif tenant == batch.tenant and priority == batch.priority:
                own += queue.turns(mine, is_among_them=batch.id in self._own)
        share = own / self._weights.get(batch.tenant, 1.0)
        theirs = sum(
            min(_step(tokens), share * self._weights.get(tenant, 1.0))
            for tenant, tokens in self._tokens.items()
            if tenant != batch.tenant
        )
        own_seconds = own * self._pace_of(batch).seconds_per_token
        return own_seconds + theirs * self._whole.seconds_per_token

    def _tokens_left(self, batch: BatchLoad) -> float:
        """Tokens that the rows without an answer will take."""
        found = self._pace_of(batch)
        if not batch.tokens:
            return batch.rows_open * found.used / found.rows
        usage = self._usage_of(batch) or TenantUsage()
        ratio = usage.ratio(found.used / found.predicted)
        left = batch.tokens * batch.rows_open / batch.rows
        done = batch.tokens - left
        if batch.used is not None:
            # What its own rows took counts as soon as there are some.
            prior = 0.02 * batch.tokens
            used = batch.used + self._used_without_result(batch, usage)
            ratio = (used + prior * ratio) / (done + prior)
        return left * ratio

    def _used_without_result(self, batch: BatchLoad, usage: TenantUsage) -> float:
        """Tokens of the rows that are answered, and whose slice is not done yet."""
        rows, told = batch.rows_left - batch.rows_open, batch.in_engine
        if not rows or told is None or not told.answered:
            return 0.0
        prompts = usage.prompts / usage.rows if usage.rows else 0.0
        return rows * (told.answer_tokens / told.answered + prompts)

    def _average_stay(self, batch: BatchLoad) -> float:
        """Seconds that a row is in the engine.

        A full engine has each for as long as it takes to compute one row for each seat.
        """
        tokens = self._tokens_left(batch) / max(1, batch.rows_open)
        return self._lane.seats * tokens * self._pace_of(batch).seconds_per_token

    def _longest_stay(self, batch: BatchLoad) -> float:
        """Seconds that the row with the longest answer is still in a full engine."""
        usage = self._usage_of(batch)
        if usage is None or not usage.answers or not batch.tokens:
            return self._average_stay(batch)
        tokens = self._tokens_left(batch) / max(1, batch.rows_open)
        answer = tokens * usage.answer_part
        limit = batch.tokens / batch.rows - (tokens - answer)
        told = batch.in_engine
        if told is not None and told.inside >= batch.rows_open > 0:
            # All of them have begun. However long an answer is, it may go on; but not for ever.
            limit -= told.made / told.inside
            steps = max(1.0, min(limit, _longest(answer, batch.rows_open)))
        else:
            rows = min(batch.rows_open - (told.inside if told else 0), self._lane.seats)
            steps = max(answer, min(limit, _longest(answer, rows)))
        # Each step of the engine makes a token of every answer in it.
        answers = self._whole.used * self._usage.answer_part
        return steps * self._lane.seats * self._whole.seconds / answers

    def _usage_of(self, batch: BatchLoad) -> TenantUsage | None:
        return self._lane.usages.get(TenantKind(batch.kind, batch.tenant))

    def _pace_of(self, batch: BatchLoad) -> KindPace:
        return self._lane.pace.of(batch.kind) or self._whole

    def _source(self, batch: BatchLoad) -> Source:
        if batch.done > 0 and batch.used is not None and batch.tokens:
            return "batch"
        return "kind" if batch.kind and batch.kind in self._lane.pace.kinds else "lane"

    def _neighbours(self, like: Likeness) -> list[Ended]:
        """The ended batches that were most like it."""
        strangeness = _new_strangeness if like.stage == "new" else _running_strangeness
        # Of equal ones the last.
        ended = self._ended[like.stage][::-1]
        return sorted(ended, key=lambda one: strangeness(one.like, like))[: _NEIGHBOURS[like.stage]]


class _Queue:
    """Batches of one tenant and priority, which take turns; by their tokens."""

    def __init__(self) -> None:
        self.total = 0.0
        self._tokens: list[float] = []
        self._sums: list[float] = []

    def add(self, tokens: float) -> None:
        self.total += tokens
        self._tokens.append(tokens)
        self._sums = []

    def turns(self, mine: float, *, is_among_them: bool) -> float:
        """Tokens that the others have had when one batch, with so many tokens, is done."""
        if not self._sums:
            self._tokens.sort()
            self._sums = [0.0, *accumulate(self._tokens)]
        less = bisect_left(self._tokens, mine)
        more = len(self._tokens) - less
        return max(0.0, self._sums[less] + (more - is_among_them) * mine)


# The weights were found with `benchmarks/eta.py`, on other seeds than it publishes.
def _new_strangeness(one: Likeness, other: Likeness) -> float:
    return (
        abs(log(one.counted / other.counted))
        + abs(one.queued - other.queued)
        + 2 * abs(one.load - other.load)
        + 0.2 * abs(log(one.rows / other.rows))
        + 0.4 * (one.tenant != other.tenant)
    )


def _running_strangeness(one: Likeness, other: Likeness) -> float:
    return (
        0.5 * abs(log(one.counted / other.counted))
        + abs(one.queued - other.queued)
        + abs(one.load - other.load)
        + abs(one.waiting - other.waiting)
        + 0.2 * abs(log(one.rows / other.rows))
        + 0.8 * (one.tenant != other.tenant)
    )


def _longest(answer: float, rows: int) -> float:
    """Tokens to expect of the longest of so many answers, if a long one is as likely to go on.

    This is the average of the largest of so many exponential lengths, the harmonic number.
    """
    return answer * _harmonic(max(1, rows))


@lru_cache(maxsize=4096)
def _harmonic(number: int) -> float:
    return sum(1 / one for one in range(1, number + 1))


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Of these, in order; between two of them in proportion."""
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _step(number: float) -> float:
    """The middle of the step of a factor of two that the number is in."""
    return 0.0 if number < 1 else 1.5 * 2.0 ** int(log2(number))

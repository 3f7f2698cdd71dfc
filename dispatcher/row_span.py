"""A span: consecutive rows of an input, of which a plan may change the order. Pure."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.prefix_order import PrefixSample, prefix_order
from shared.input.beginnings import beginning
from shared.input.rows import Row
from shared.lane_shares import LaneShare
from shared.openai.endpoints import ENDPOINTS
from shared.slicing import SliceLimits

#: One row in so many is looked at to see whether it is worth while to look at all of them.
_SAMPLED = 8
#: An engine's queue has so many times the rows that the engine computes at once.
_QUEUED = 2


@dataclass(frozen=True)
class SpanLimits:
    """The maximum of a span; it is held in memory when its order changes."""

    rows: int = 8192
    bytes: int = 32 * 1024 * 1024


class SpanRow(NamedTuple):
    """A row in bytes [start, end) of the input's object."""

    start: int
    end: int
    tokens: int
    lane: int


class RowSpan:
    """Takes rows in order, and says whether the beginnings of their prompts repeat from afar."""

    def __init__(
        self,
        limits: SpanLimits,
        slices_of: Callable[[int], SliceLimits],
        *,
        is_sampled: bool = True,
    ) -> None:
        """`slices_of` gives the limits of a lane's slices by its number."""
        self._limits = limits
        self._slices_of = slices_of
        self._is_sampled = is_sampled
        self.rows: list[SpanRow] = []
        #: By a row's position, what a copy has in place of its line.
        self._replaced: dict[int, bytes] = {}
        self._replaced_bytes = 0
        #: Whether it has a bad line, so that its slices have to be read from a copy.
        self.has_bad_lines = False
        #: How many rows the queue of each lane's engine has.
        self._queue_rows: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._samples: dict[int, PrefixSample] = {}
        # Not by a stride, which the input's own period could be a multiple of.
        self._random = random.Random(7)  # a sample, not a secret

    @property
    def start(self) -> int:
        return self.rows[0].start

    @property
    def end(self) -> int:
        return self.rows[-1].end

    @property
    def has_known_rows(self) -> bool:
        """Whether a copy has answers of its rows."""
        return bool(self._replaced)

    @property
    def repeats(self) -> bool:
        """Whether it is worth while to look at all of its rows."""
        return any(sample.repeats for sample in self._samples.values())

    def order(self, body: bytes) -> list[int] | None:
        """Its rows' positions, lane by lane, in an order in which prompts begin alike.

        None if no lane gains enough, and no copy is needed. `body` has the span's bytes.
        """
        lanes: dict[int, list[int]] = {}
        for position, row in enumerate(self.rows):
            lanes.setdefault(row.lane, []).append(position)
        orders = {lane: self._order_of(lane, positions, body) for lane, positions in lanes.items()}
        if not (any(orders.values()) or self._replaced):
            return None
        return [
            position for lane, positions in lanes.items() for position in orders[lane] or positions
        ]

    def lines(self, body: bytes, positions: Iterable[int]) -> Iterator[bytes]:
        """What stands in a copy for these rows; `body` has the span's bytes."""
        for position in positions:
            row = self.rows[position]
            replaced = self._replaced.get(position)
            yield replaced or body[row.start - self.start : row.end - self.start]

    def has_room(self, row: Row) -> bool:
        if not self.rows:
            return True
        is_short = len(self.rows) < self._limits.rows
        size = row.end - self.start + self._replaced_bytes
        return is_short and size <= self._limits.bytes

    def add(self, row: Row, share: LaneShare) -> None:
        lane = share.number
        self.has_bad_lines |= row.bad_line is not None
        if (replaced := row.bad_line or row.known) is not None:
            self._replaced[len(self.rows)] = replaced
            self._replaced_bytes += len(replaced)
        self.rows.append(SpanRow(row.start, row.end, row.tokens, lane))
        if not self._is_sampled or not ENDPOINTS[row.url].has_output:
            return
        number = self._counts[lane] = self._counts.get(lane, -1) + 1
        if self._random.random() * _SAMPLED >= 1:
            return
        if (sample := self._samples.get(lane)) is None:
            rows = _QUEUED * share.model.max_replicas * share.model.seats
            self._queue_rows[lane] = rows
            sample = self._samples[lane] = PrefixSample(queue_rows=rows)
        sample.add(number, row.tokens, row.line)

    def _order_of(self, lane: int, positions: Sequence[int], body: bytes) -> list[int] | None:
        if lane not in self._queue_rows:
            return None
        tokens = sum(self.rows[position].tokens for position in positions)
        # Whoever runs a slice sends its rows that begin alike together.
        slices = self._slices_of(lane)
        slice_rows = min(slices.rows, slices.tokens * len(positions) // max(1, tokens))
        order = prefix_order(
            [beginning(line).prefix for line in self.lines(body, positions)],
            tokens=tokens,
            queue_rows=max(self._queue_rows[lane], slice_rows),
        )
        return order and [positions[number] for number in order]

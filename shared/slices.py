"""Slices of a batch and their states: planned, ready, claimed, committed. Pure values."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

T = TypeVar("T")

#: A script handles at most this many slices per call.
MAX_CALL_ENTRIES = 100


class Slice(NamedTuple):
    """Rows of a batch that run together, in bytes [start, end) of its input object.

    Without a mask it has all rows in these bytes, from `first_row` on. If several lanes share a
    stretch of rows, `mask` says which rows belong to this slice: bit n of this hexadecimal number
    stands for row `first_row + n`. All slices of a stretch have the same `first_row`.
    """

    start: int
    end: int
    first_row: int
    rows: int
    tokens: int
    #: An index into the lanes of the batch's record.
    lane: int = 0
    mask: str = ""

    @property
    def row_numbers(self) -> Sequence[int]:
        """Its rows, in order."""
        if not self.mask:
            return range(self.first_row, self.first_row + self.rows)
        bits = int(self.mask, 16)
        return [self.first_row + n for n in range(bits.bit_length()) if bits >> n & 1]

    def pick(self, lines: Sequence[T]) -> Sequence[T]:
        """The slice's own items out of `lines`, which has one for each row in its bytes."""
        if not self.mask:
            return lines
        numbers = self.row_numbers
        return [lines[number - numbers[0]] for number in numbers]

    def to_text(self) -> str:
        """The slice as stored in Redis. Scripts read rows and tokens by position."""
        return json.dumps(self if self.lane or self.mask else self[:5])


def to_slice(text: str) -> Slice:
    """Decode a slice as stored in Redis."""
    return Slice(*json.loads(text))


class SliceUsage(NamedTuple):
    """Rows and tokens of a part, as `commit` counts them."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class StrikeRange(NamedTuple):
    """Rows [start, end) of a slice, counted from its first row, and how many strikes each has."""

    start: int
    end: int
    strikes: int


class Part(NamedTuple):
    """A slice's results in S3: `output_bytes` of results, then `error_bytes` of errors.

    It has every row of the slice unless the run broke or the batch closed before they had run.
    """

    key: str
    etag: str
    output_bytes: int
    error_bytes: int
    rows: int
    usage: SliceUsage


@dataclass(frozen=True)
class Claim:
    """A lane job's right to run a slice for a while; the epoch fences late writers."""

    lane: str
    batch_id: str
    index: int
    epoch: int
    strikes: int
    slice: Slice
    bucket: str
    key: str
    etag: str
    endpoint: str
    tenant: str
    #: The version of the input object; empty for the newest.
    version_id: str = ""
    #: The rows that were in an engine when it died, and the last engine's last words.
    strike_ranges: tuple[StrikeRange, ...] = ()
    last_words: str = ""
    #: How many engines have died of rows that were certainly this batch's.
    engine_deaths: int = 0
    #: How many strikes each row began with: the batch reruns a row that has killed engines before.
    strikes_before: int = 0
    #: What the order of rows depends on; times are Unix seconds.
    priority: int = 0
    created_at: int = 0
    expires_at: int = 0
    #: How many rows the batch has in all.
    batch_rows: int = 0
    #: The results of those rows that an earlier run of the slice has answered.
    kept: Part | None = None


class Stop(StrEnum):
    """Why a slice that runs must stop."""

    #: No more of its rows go to the engine. Those that are in it end.
    PAUSED = "paused"
    #: Its batch is closing or has ended, or its lane was given up: its rows leave the engine.
    CLOSED = "closed"


class ReleaseReason(StrEnum):
    """Why a claim ended without a result. Scripts write the last two."""

    NOT_RUN = "not_run"
    PAUSED = "paused"
    ENGINE_DIED = "engine_died"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    ENGINE_FAILED = "engine_failed"
    INPUT_LOST = "input_lost"
    CLAIM_EXPIRED = "claim_expired"
    JOB_ENDED = "job_ended"


@dataclass(frozen=True)
class PlannedSlice:
    """A slice of a plan, and the part committed for it, if any."""

    index: int
    slice: Slice
    part: Part | None


@dataclass(frozen=True)
class ReadySlice:
    """A slice that could run next, with everything the ordering depends on."""

    batch_id: str
    index: int
    tenant: str
    priority: int
    created_at: int
    expires_at: int
    tokens: int
    rows: int
    is_ready: bool
    #: Rows of the batch on this lane that have no result yet.
    rows_left: int = 0
    #: When a slice of the batch was last claimed on this lane, in Unix seconds; 0 if none ever was.
    claimed_at: int = 0

    @property
    def member(self) -> str:
        return f"{self.batch_id}:{self.index}"


def to_part(text: str) -> Part:
    """Decode a part as stored in Redis."""
    key, etag, output_bytes, error_bytes, rows, usage = json.loads(text)
    return Part(key, etag, output_bytes, error_bytes, rows, SliceUsage(*usage))


def part_label(output_bytes: int, rows: int, usage: SliceUsage) -> str:
    """A part's counts as text. It is stored as the object's label, so that S3 has them too."""
    return " ".join(map(str, (output_bytes, rows, *usage)))


def labelled_part(key: str, etag: str, size: int, label: str) -> Part:
    """The part, from its label and a listing's entry for the object. Raises ValueError."""
    output_bytes, rows, *usage = map(int, label.split())
    if len(usage) != len(SliceUsage._fields):
        raise ValueError(f"The label of {key} is not a part's label.")
    return Part(key, etag, output_bytes, size - output_bytes, rows, SliceUsage(*usage))

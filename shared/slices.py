"""Slices of a batch and what becomes of them: planned, ready, claimed, committed. Pure values."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Slice(NamedTuple):
    """Rows of a batch that run together, in bytes [start, end) of its input object.

    They are all the rows there, from `first_row` on; or, where several lanes share a stretch of a
    batch's rows, those that `mask` names: a number in hex whose bit n stands for row
    `first_row + n`. All slices of a stretch have the same `first_row`.
    """

    start: int
    end: int
    first_row: int
    rows: int
    tokens: int
    #: Which of the batch's lanes, in the order of its record.
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
        """Of what its bytes hold, one a row, what is its own."""
        if not self.mask:
            return lines
        numbers = self.row_numbers
        return [lines[number - numbers[0]] for number in numbers]

    def to_text(self) -> str:
        """As Redis keeps it; scripts read rows and tokens by their places."""
        return json.dumps(self if self.lane or self.mask else self[:5])


def to_slice(text: str) -> Slice:
    """A slice as Redis keeps it."""
    return Slice(*json.loads(text))


class SliceUsage(NamedTuple):
    """Rows and tokens of a part, as `commit` counts them."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class Doubt(NamedTuple):
    """Rows [start, end) of a slice, counted in it, and how many engines died with them."""

    start: int
    end: int
    strikes: int


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
    #: Of the input object; empty for the newest.
    version_id: str = ""
    #: The rows of the slice that were in an engine when it died, and what was said the last time.
    doubts: tuple[Doubt, ...] = ()
    last_words: str = ""
    #: How many engines have died of the batch's rows, as far as it was certain that they were its.
    engine_deaths: int = 0
    #: With how many strikes each of its rows began: their batch runs again what has killed before.
    strikes_before: int = 0


class GivenBack(StrEnum):
    """Why a claim ended without a result. Scripts write the last two."""

    NOT_RUN = "not_run"
    ENGINE_DIED = "engine_died"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    ENGINE_FAILED = "engine_failed"
    INPUT_LOST = "input_lost"
    CLAIM_EXPIRED = "claim_expired"
    JOB_ENDED = "job_ended"


class Part(NamedTuple):
    """A committed slice's results: `output_bytes` of results, then `error_bytes` of errors."""

    key: str
    etag: str
    output_bytes: int
    error_bytes: int
    rows: int
    usage: SliceUsage


@dataclass(frozen=True)
class PlannedSlice:
    """A slice of a plan, and what was committed for it so far."""

    index: int
    slice: Slice
    part: Part | None


@dataclass(frozen=True)
class ReadySlice:
    """A slice that could run next, with all that the ordering looks at."""

    batch_id: str
    index: int
    tenant: str
    priority: int
    created_at: int
    expires_at: int
    tokens: int
    rows: int
    is_ready: bool

    @property
    def member(self) -> str:
        return f"{self.batch_id}:{self.index}"


def label(output_bytes: int, rows: int, usage: SliceUsage) -> str:
    """What Redis knows of a part and its object does not tell; S3 keeps it beside that."""
    return " ".join(map(str, (output_bytes, rows, *usage)))


def labelled(key: str, etag: str, size: int, text: str) -> Part:
    """The inverse of `label`, with what a listing says of the object. Raises ValueError."""
    output_bytes, rows, *usage = map(int, text.split())
    if len(usage) != len(SliceUsage._fields):
        raise ValueError(f"The label of {key} is none of a part.")
    return Part(key, etag, output_bytes, size - output_bytes, rows, SliceUsage(*usage))

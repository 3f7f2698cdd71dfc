"""Slices of a batch and their states: planned, ready, claimed, committed. Pure values."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

import msgspec

from shared.checksums import checksum
from shared.spent import NOTHING, Spent, from_text, to_text

T = TypeVar("T")

#: A label of a version that kept no checksums has output bytes, rows and usage.
_COUNTS_OF_OLD_LABEL = 8
#: How many counts and checksums a label has.
_COUNTS, _CHECKSUMS = 9, 2
#: How many words come after its counts: the checksums, the GPU time, and what else is counted.
_WORDS = 4
#: A script handles at most this many slices per call.
MAX_CALL_ENTRIES = 100


#: How the name of a copy ends that has errors: plans of every version have room for a name.
_WITH_ERRORS = "-errors"
#: How the name of a copy ends that has answers, and no errors.
_WITH_ANSWERS = "-answers"
#: How the name of a copy ends that an addition to an open batch is.
ADDED = "-added"


class Copy(NamedTuple):
    """Where a slice's lines stand next to each other: bytes [start, end) of a copy of the input."""

    name: str
    start: int
    end: int
    #: The checksum of these bytes; empty in plans of versions that kept none.
    checksum: str = ""
    #: Of a copy of an addition with answers: the same lines without them, in the addition itself.
    plain: "Copy | None" = None

    @property
    def has_errors(self) -> bool:
        """Whether errors stand in it for bad lines; then it alone has these lines."""
        return self.name.endswith(_WITH_ERRORS)

    @property
    def has_answers(self) -> bool:
        """Whether answers may stand in it for rows that were answered before."""
        return self.has_errors or self.name.endswith(_WITH_ANSWERS)

    @property
    def is_input(self) -> bool:
        """Whether it alone has its lines: they are in no input, or stand there otherwise."""
        return self.has_errors or self.name.endswith(ADDED)

    def fits(self, body: bytes) -> bool:
        """Whether these are its bytes."""
        return Section(*self[1:4]).fits(body)


class Slice(NamedTuple):
    """Rows of a batch that run together, in bytes [start, end) of its input object.

    Without a mask it has all rows in these bytes, from `first_row` on. If a stretch of rows has
    several slices, `mask` says which rows belong to this one (`mask_of`), and all slices of the
    stretch have the same `first_row`.
    """

    start: int
    end: int
    first_row: int
    rows: int
    tokens: int
    #: An index into the lanes of the batch's record.
    lane: int = 0
    mask: str = ""
    #: Mostly it is only to read less: if it is gone, the same lines are in the input.
    copy: Copy | None = None

    @property
    def row_numbers(self) -> Sequence[int]:
        """Its rows, in order."""
        if not self.mask:
            return range(self.first_row, self.first_row + self.rows)
        return [self.first_row + row for row in _rows_of(self.mask)]

    def pick(self, lines: Sequence[T]) -> Sequence[T]:
        """The slice's own items out of `lines`, which has one for each row in its bytes."""
        if not self.mask:
            return lines
        numbers = self.row_numbers
        return [lines[number - numbers[0]] for number in numbers]

    def to_text(self) -> str:
        """The slice as stored in Redis. Scripts read rows and tokens by position."""
        length = 8 if self.copy else 7 if self.lane or self.mask else 5
        if self.copy and self.copy.plain is None:
            return json.dumps([*self[:7], self.copy[:4]])
        return json.dumps(self[:length])


def with_errors(copy: str) -> str:
    """The name for this copy if it has errors."""
    return f"{copy}{_WITH_ERRORS}"


def with_answers(copy: str) -> str:
    """The name for this copy if it has answers."""
    return f"{copy}{_WITH_ANSWERS}"


_slices = msgspec.json.Decoder(Slice)


def to_slice(text: str) -> Slice:
    """Decode a slice as stored in Redis."""
    return _slices.decode(text)


def mask_of(rows: Sequence[int]) -> str:
    """These rows of a stretch, in order and counted from its first one, as text.

    It is a hexadecimal number in which bit n stands for row n, or, if that is shorter, a comma
    before each gap from one row to the next.
    """
    bits = f"{sum(1 << row for row in rows):x}"
    gaps = "".join(f",{row - before - 1}" for before, row in pairwise((-1, *rows)))
    return min(bits, gaps, key=len)


def _rows_of(mask: str) -> list[int]:
    if mask.startswith(","):
        gaps = map(int, mask[1:].split(","))
        return [row + number for number, row in enumerate(accumulate(gaps))]
    bits = int(mask, 16)
    return [row for row in range(bits.bit_length()) if bits >> row & 1]


class SliceUsage(NamedTuple):
    """Rows and tokens of a part, as `commit` counts them."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class RowCounts(NamedTuple):
    """What else is counted of the rows of a part."""

    #: Rows that were given an answer of an earlier batch.
    cached_rows: int = 0
    #: How often a row was asked again because its answer did not fit.
    asked_again: int = 0

    def plus(self, other: "RowCounts") -> "RowCounts":
        """The sums."""
        return RowCounts(self.cached_rows + other.cached_rows, self.asked_again + other.asked_again)


NO_COUNTS = RowCounts()


class StrikeRange(NamedTuple):
    """Rows [start, end) of a slice, counted from its first row, and how many strikes each has."""

    start: int
    end: int
    strikes: int


class Section(NamedTuple):
    """Bytes [start, end) of an object, and their checksum; an empty one if it is not known."""

    start: int
    end: int
    checksum: str

    def fits(self, body: bytes) -> bool:
        """Whether these are the section's bytes."""
        if len(body) != self.end - self.start:
            return False
        return not self.checksum or checksum(body) == self.checksum


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
    #: Empty in parts of versions that kept none.
    output_checksum: str = ""
    error_checksum: str = ""
    #: GPU time of its rows, as `shared.spent.to_text` writes it; empty where nobody knows.
    spent: str = ""
    counts: RowCounts = NO_COUNTS

    @property
    def output(self) -> Section:
        """Where the lines of the output file are."""
        return Section(0, self.output_bytes, self.output_checksum)

    @property
    def error(self) -> Section:
        """Where the lines of the error file are."""
        end = self.output_bytes + self.error_bytes
        return Section(self.output_bytes, end, self.error_checksum)

    def fits(self, body: bytes) -> bool:
        """Whether these are the part's bytes."""
        output, error = body[: self.output_bytes], body[self.output_bytes :]
        return self.output.fits(output) and self.error.fits(error)


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
    #: Whether all other slices of the batch are claimed or committed by now.
    is_last: bool = False
    #: The tenant's in the fair share.
    weight: float = 1.0
    #: How many engines have died today of rows that were certainly the tenant's, and how many may;
    #: None where nothing is set for the tenant.
    tenant_deaths: int = 0
    tenant_death_limit: int | None = None
    #: The W3C trace context of the batch's submission; empty without one.
    traceparent: str = ""
    #: Which answers are asked for again, as `shared.table.asking` writes it; empty for none.
    asking: str = ""


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
    key, etag, output_bytes, error_bytes, rows, usage, *rest = json.loads(text)
    part = Part(key, etag, output_bytes, error_bytes, rows, SliceUsage(*usage), *rest)
    return part._replace(counts=RowCounts(*part.counts))


def new_part(
    key: str,
    output: bytes,
    error: bytes,
    usage: SliceUsage,
    spent: Spent = NOTHING,
    counts: RowCounts = NO_COUNTS,
) -> Part:
    """The part with these lines, before it is written: it has no ETag yet."""
    return Part(
        key,
        "",
        len(output),
        len(error),
        usage.completed + usage.failed,
        usage,
        checksum(output),
        checksum(error),
        to_text(spent),
        counts,
    )


def part_label(part: Part) -> str:
    """A part's counts, checksums and GPU time as text, which ends in its own checksum.

    It is stored as the object's label, so that S3 has them too.
    """
    counts = (part.output_bytes, part.rows, *part.usage, part.error_bytes)
    spent = part.spent or to_text(NOTHING)
    known = [part.output_checksum, part.error_checksum, spent, *filter(any, [part.counts])]
    text = " ".join(map(_label_word, (*counts, *known)))
    return f"{text} {checksum(text.encode())}"


def labelled_part(key: str, etag: str, size: int, label: str) -> Part:
    """The part, from its label and a listing's entry for the object.

    Raises ValueError if they do not belong to each other.
    """
    counts, rest = label.split(), tuple[str, ...]()
    if len(counts) > _COUNTS_OF_OLD_LABEL:
        text, _, seal = label.rpartition(" ")
        if checksum(text.encode()) != seal:
            raise ValueError("its label is damaged")
        # A label of a version that counted no GPU time ends after the checksums.
        counts, rest = counts[:_COUNTS], tuple(counts[_COUNTS:-1])
        from_text(rest[_CHECKSUMS] if len(rest) > _CHECKSUMS else "")
    output_bytes, rows, *usage = map(int, counts)
    error_bytes = usage.pop() if rest else size - output_bytes
    if len(usage) != len(SliceUsage._fields):
        raise ValueError("it has no part's label")
    if size != output_bytes + error_bytes or error_bytes < 0:
        raise ValueError(f"it has {size} bytes instead of {output_bytes + error_bytes}")
    # Earlier versions wrote fewer of these.
    output_sum, error_sum, spent, others = (*rest, "", "", "", "")[:_WORDS]
    row_counts = RowCounts(*map(int, others.split(","))) if others else NO_COUNTS
    return Part(
        key,
        etag,
        output_bytes,
        error_bytes,
        rows,
        SliceUsage(*usage),
        output_sum,
        error_sum,
        spent,
        row_counts,
    )


def _label_word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, RowCounts) else str(value)

"""Slices of a batch and what becomes of them: planned, ready, claimed, committed. Pure values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Slice(NamedTuple):
    """Consecutive rows of a batch: bytes [start, end) of its input object."""

    start: int
    end: int
    first_row: int
    rows: int
    tokens: int


class SliceUsage(NamedTuple):
    """Rows and tokens of a part, as `commit` counts them."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


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

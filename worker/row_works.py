"""What the order of a slice's rows in front of the engine depends on. Pure."""

from collections.abc import Iterator, Sequence
from math import inf

from shared.input.beginnings import beginning
from shared.ordering.work import Work
from shared.slices import Claim


def works(claim: Claim, lines: Sequence[bytes]) -> Iterator[Work]:
    """A work for each row of the slice, in order."""
    tokens = claim.slice.tokens / claim.slice.rows
    for number, line in zip(claim.slice.row_numbers, lines, strict=True):
        begins = beginning(line)
        yield Work(
            batch_id=claim.batch_id,
            number=number,
            tenant=claim.tenant,
            priority=claim.priority,
            created_at=claim.created_at,
            expires_at=claim.expires_at,
            tokens=tokens,
            prefix=begins.prefix,
            max_output=inf if begins.limit is None else begins.limit,
            kind=begins.kind,
            weight=claim.weight,
            batch_rows=claim.batch_rows or inf,
        )


def another_attempt(work: Work) -> Work:
    """The work of a row that is asked again because its answer did not fit."""
    return work._replace(attempt=work.attempt + 1)

"""What the order of a slice's rows in front of the engine depends on. Pure."""

from collections.abc import Sequence
from math import inf

from shared.input.beginnings import beginning
from shared.ordering.work import Work
from shared.slices import Claim


def works(claim: Claim, lines: Sequence[bytes], left: Sequence[int]) -> list[Work]:
    """A work for each row of the slice, in order. `left` are the positions of rows yet to run."""
    tokens = claim.slice.tokens / claim.slice.rows
    last = left[-1] if claim.is_last and left else None
    found = []
    for position, (number, line) in enumerate(zip(claim.slice.row_numbers, lines, strict=True)):
        begins = beginning(line)
        found.append(
            Work(
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
                batch_rows=claim.batch_rows or inf,
                ends_batch=position == last,
            )
        )
    return found

"""What the order of a slice's rows in front of the engine depends on. Pure."""

from math import inf

from shared.ordering.work import Work
from shared.slices import Claim


def works(claim: Claim) -> list[Work]:
    """A work for each row of the slice, in order."""
    tokens = claim.slice.tokens / claim.slice.rows
    return [
        Work(
            batch_id=claim.batch_id,
            number=number,
            tenant=claim.tenant,
            priority=claim.priority,
            created_at=claim.created_at,
            expires_at=claim.expires_at,
            tokens=tokens,
            batch_rows=claim.batch_rows or inf,
        )
        for number in claim.slice.row_numbers
    ]

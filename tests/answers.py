"""The results of request lines, from an engine that gives them as they come."""

import secrets
from collections.abc import Sequence
from contextlib import aclosing
from math import inf

from shared.ordering.work import Work
from worker.engine_errors import Engine, Result


async def answers(
    engine: Engine, lines: Sequence[bytes], *, batch_rows: float = inf
) -> list[tuple[int, bytes]]:
    """Status and body of all results, in the order of the lines, of a batch with so many rows."""
    found: dict[int, Result] = {}
    # The answers of a batch's rows are kept.
    batch_id = f"batch_{secrets.token_hex(8)}"
    works = [
        Work(
            batch_id,
            number,
            "acme",
            priority=0,
            created_at=0,
            expires_at=86_400,
            tokens=10,
            batch_rows=batch_rows,
        )
        for number in range(len(lines))
    ]
    async with aclosing(engine.run_lines(lines, works)) as groups:
        async for group in groups:
            found.update(group)
    assert len(found) == len(lines)
    return [(status, body) for _, (status, body, *_) in sorted(found.items())]

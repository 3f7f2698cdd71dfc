"""What a batch is warned of although nothing is wrong with it. Pure."""

from datetime import UTC, datetime

from shared.openai.shapes import BatchWarning


def late_warnings(late: float | None, *, expires_at: float) -> list[BatchWarning]:
    """That one of five such batches would end after the window; nothing if all is well."""
    return [deadline_at_risk(late)] if late is not None and late > expires_at else []


def deadline_at_risk(late: float) -> BatchWarning:
    """One of five such batches would end after this time (Unix seconds), which is too late."""
    at = datetime.fromtimestamp(late, UTC).strftime("%Y-%m-%dT%H:%MZ")
    return BatchWarning(
        code="deadline_at_risk",
        message="At the engine's pace and beside the other tenants' shares, the batch may end as "
        f"late as {at}, after its window. Requests that have not run by then expire: allow more "
        "time, or send fewer requests.",
    )

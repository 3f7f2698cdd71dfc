"""What a batch is warned of although nothing is wrong with it. Pure."""

from datetime import UTC, datetime

from shared.openai.shapes import BatchWarning


def deadline_at_risk(end: float) -> BatchWarning:
    """The batch would end at about this time (Unix seconds), after its window."""
    at = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%MZ")
    return BatchWarning(
        code="deadline_at_risk",
        message="At the lane's present rate and beside the other tenants' shares, the batch would "
        f"end at about {at}, after its window. Requests that have not run by then expire: allow "
        "more time, or send fewer requests.",
    )

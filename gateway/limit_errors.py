"""How callers learn of their limits: the headers of each answer, and the errors above a limit."""

from shared.errors import LimitError
from shared.openai.limits import amount_code, go_duration
from shared.state import RateStatus
from shared.submission.admission import Reached, refusal_text


def limit_headers(rate_status: RateStatus) -> dict[str, str]:
    """OpenAI's headers, for the limit that is closest."""
    return {
        "x-ratelimit-limit-requests": str(rate_status.rate.calls),
        "x-ratelimit-remaining-requests": str(rate_status.left),
        "x-ratelimit-reset-requests": go_duration(rate_status.reset_seconds),
    }


def token_headers(rate_status: RateStatus) -> dict[str, str]:
    """OpenAI's headers for the tokens a minute of live calls."""
    return {
        "x-ratelimit-limit-tokens": str(rate_status.rate.calls),
        "x-ratelimit-remaining-tokens": str(rate_status.left),
        "x-ratelimit-reset-tokens": go_duration(rate_status.reset_seconds),
    }


def too_many_calls(tenant: str, rate_status: RateStatus, *, kind: str = "requests") -> LimitError:
    """The error for a call above the tenant's rate; `kind` is what there was too much of."""
    return LimitError(
        refusal_text(tenant, rate_status),
        kind=kind,
        code="rate_limit_exceeded",
        wait_seconds=rate_status.wait_seconds,
    )


def limit_reached(tenant: str, reached: Reached) -> LimitError:
    """The error for a call that would exceed what the tenant may have."""
    return LimitError(
        refusal_text(tenant, reached),
        kind=reached.amount,
        code=amount_code(reached.amount),
        wait_seconds=reached.wait_seconds,
    )


def no_room(tenant: str, *, limit: int, used: int) -> LimitError:
    """The error for bytes that the tenant may not have stored."""
    return limit_reached(tenant, Reached("stored_bytes", None, limit, used))

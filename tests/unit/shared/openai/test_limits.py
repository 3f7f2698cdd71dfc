import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.openai.limits import Amount, amount_code, amount_text, go_duration, rate_text


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (0.0051, "6ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (3661.25, "1h1m1.25s"),
    ],
)
def test_a_time_is_written_as_go_does(seconds: float, written: str) -> None:
    assert go_duration(seconds) == written


@given(st.floats(0, 10_000_000))
def test_a_time_is_never_written_as_shorter_than_it_is(seconds: float) -> None:
    assert _read(go_duration(seconds)) >= seconds - 0.000_001


def test_a_full_queue_is_explained_in_openais_words() -> None:
    assert amount_code("tokens") == "token_limit_exceeded"
    assert amount_text("tokens", tenant="acme", model="m", limit=90_000, used=89_000) == (
        "Enqueued token limit reached for m in organization acme. Limit: 90,000 enqueued tokens. "
        "Used: 89,000. Please try again once some in_progress batches have been completed."
    )
    assert amount_code("requests") == "request_limit_exceeded"
    assert amount_text("requests", tenant="acme", limit=1_000_000, used=1_000_000) == (
        "Enqueued request limit reached in organization acme. Limit: 1,000,000 enqueued requests. "
        "Used: 1,000,000. Please try again once some in_progress batches have been completed."
    )


@pytest.mark.parametrize(
    ("amount", "said", "advice"),
    [
        ("stored_bytes", "Storage limit", "delete files"),
        ("event_streams", "Event stream limit", "close a stream"),
        ("kept_batches", "Kept batch limit", "ask the operator"),
        ("downloads", "Download limit", "once one of them has ended"),
        ("engine_deaths", "Engine death limit", "engine_died"),
    ],
)
def test_a_limit_says_which_it_is_its_value_what_is_used_and_what_to_do(
    amount: Amount, said: str, advice: str
) -> None:
    text = amount_text(amount, tenant="acme", limit=12_345, used=54_321)

    assert text.startswith(f"{said} reached in organization acme. Limit: 12,345 ")
    assert "Used: 54,321." in text
    assert advice in text
    assert amount_code(amount).endswith("_limit_exceeded")


def test_a_rate_names_its_limit_and_when_to_come_back() -> None:
    text = rate_text(tenant="acme", what="batches per hour", limit=2000, wait_seconds=1.8)

    assert text == (
        "Rate limit reached for organization acme on batches per hour: Limit 2,000, "
        "Used 2,000. Please try again in 1.8s."
    )


def _read(written: str) -> float:
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    if written.endswith("ms"):
        return int(written[:-2]) / 1000
    total, number = 0.0, ""
    for sign in written:
        if sign in units:
            total, number = total + float(number) * units[sign], ""
        else:
            number += sign
    return total

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.keys import expiry
from shared.errors import InvalidInputError

_NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90d", datetime(2027, 2, 20, 12, tzinfo=UTC)),
        ("12h", datetime(2026, 11, 23, tzinfo=UTC)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T18:00:00Z", datetime(2027, 1, 31, 18, tzinfo=UTC)),
        ("2027-01-31T18:00:00+02:00", datetime(2027, 1, 31, 16, tzinfo=UTC)),
    ],
)
def test_an_expiry_is_a_time_from_now_or_a_date(text: str, at: datetime) -> None:
    assert expiry(text, now=_NOW) == at.timestamp()


def test_a_key_may_never_expire() -> None:
    assert expiry("never", now=_NOW) is None


@given(st.integers(1, 10**11), st.integers(-23, 23))
def test_any_time_that_comes_is_read_with_its_offset(seconds: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    at = datetime.fromtimestamp(_NOW.timestamp() + seconds, zone)

    assert expiry(at.isoformat(), now=_NOW) == at.timestamp()


@pytest.mark.parametrize("text", ["", "0d", "d", "90", "soon", "2026-11-22", "2027-13-01", "-3d"])
def test_what_is_no_time_that_comes_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--expires"):
        expiry(text, now=_NOW)

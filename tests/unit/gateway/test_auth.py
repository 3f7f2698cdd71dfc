import pytest

from gateway.auth import masked


@pytest.mark.parametrize(
    ("key", "shown"),
    [("", "***"), ("sk-123", "***"), ("sk-batchyard-0123456789abcdef", "sk-***cdef")],
)
def test_a_key_is_shown_by_its_ends_only(key: str, shown: str) -> None:
    assert masked(key) == shown

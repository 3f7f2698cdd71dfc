import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.byte_range import asked_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-", (0, 10)),
        ("bytes=4-", (4, 10)),
        ("bytes=4-6", (4, 7)),
        ("bytes=4-99", (4, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        (" bytes = 2 - 2 ", (2, 3)),
    ],
)
def test_a_range_is_read_as_http_means_it(header: str, expected: tuple[int, int]) -> None:
    found = asked_range(header, 10)

    assert found is not None
    assert (found.start, found.end) == expected
    assert found.content_range == f"bytes {expected[0]}-{expected[1] - 1}/10"


@pytest.mark.parametrize(
    "header",
    [None, "", "bytes=-", "bytes=10-", "bytes=7-3", "bytes=0-1,4-5", "rows=0-1", "bytes=-0", "x"],
)
def test_anything_else_is_the_whole_file(header: str | None) -> None:
    assert asked_range(header, 10) is None
    assert asked_range("bytes=0-", 0) is None


@given(st.text(), st.integers(0, 2**60))
def test_no_text_leads_outside_the_file(header: str, size: int) -> None:
    found = asked_range(f"bytes={header}", size)

    assert found is None or 0 <= found.start < found.end <= size

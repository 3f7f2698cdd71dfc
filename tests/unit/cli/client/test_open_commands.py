import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.client.open_commands import calls
from shared.errors import InvalidInputError

MIB = 1024 * 1024


def _of(body: bytes) -> list[bytes]:
    return list(calls(io.BufferedReader(io.BytesIO(body))))


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line and line.strip())))
def test_every_line_is_sent_once_and_in_order(lines: list[bytes]) -> None:
    found = b"".join(_of(b"\n\n".join(lines)))

    assert found == b"".join(line + b"\n" for line in lines)


def test_a_call_brings_no_more_than_a_gateway_takes() -> None:
    many = _of(b"x\n" * 25_000)
    large = _of((b"y" * (MIB - 1) + b"\n") * 9)

    assert [call.count(b"\n") for call in many] == [10_000, 10_000, 5_000]
    assert max(map(len, large)) <= 4 * MIB
    assert sum(map(len, large)) == 9 * MIB


def test_a_line_that_no_call_may_bring_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="4194304 bytes"):
        _of(b"z" * 5 * MIB)

import json

from hypothesis import given
from hypothesis import strategies as st

from cli.client.results import only_failed, whole_lines


@given(st.lists(st.binary(max_size=6), max_size=20))
def test_whole_lines_lose_nothing_but_a_last_line_that_was_cut(chunks: list[bytes]) -> None:
    text = b"".join(chunks)

    pieces = list(whole_lines(chunks))

    assert b"".join(pieces) == text[: text.rfind(b"\n") + 1]
    assert all(piece.endswith(b"\n") for piece in pieces)


def test_failed_lines_have_an_error_or_an_error_response() -> None:
    def line(status: int | None, error: object = None) -> bytes:
        response = None if status is None else {"status_code": status}
        return json.dumps({"response": response, "error": error}).encode() + b"\n"

    good, bad, expired = line(200), line(400), line(None, {"code": "batch_expired"})

    assert list(only_failed([good + bad, good, expired])) == [bad, expired]

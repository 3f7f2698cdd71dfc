from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.form import MAX_FORM_BYTES, MAX_HEADER_BYTES, Form
from shared.errors import InvalidInputError, TooLargeError

#: No time limit: a busy machine is not the code's fault.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

BOUNDARY = "b0undary"
#: Bytes of which delimiters are made, so that near misses are frequent.
NASTY = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"-", b"--", b"\r\n--", b"\r\n--b0unda", b"x", b"\x00"]
    ),
    max_size=60,
).map(b"".join)


@unhurried
@given(body=st.binary(max_size=3000) | NASTY, cuts=st.lists(st.integers(0, 4000)))
def test_the_file_is_the_same_however_the_body_is_cut(body: bytes, cuts: list[int]) -> None:
    form = _form()
    sent = _body([("purpose", b"batch"), ("file", body), ("expires", b"5")])

    received = b"".join(found for chunk in _cut(sent, cuts) for found in form.feed(chunk))
    form.finish()

    assert received == body
    assert form.fields() == {"purpose": "batch", "expires": "5"}
    assert form.filename == "in.jsonl"


@unhurried
@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(0, 300)))
def test_any_bytes_are_a_form_or_refused(body: bytes, cuts: list[int]) -> None:
    form = _form()

    try:
        for chunk in _cut(b"--b0undary\r\n" + body, cuts):
            form.feed(chunk)
        form.finish()
    except (InvalidInputError, TooLargeError):
        return

    assert form.has_file


@unhurried
@given(head=st.text(max_size=60))
def test_any_part_header_is_understood_or_refused(head: str) -> None:
    form = _form()

    try:
        form.feed(
            f"--b0undary\r\ncontent-disposition: {head}\r\n\r\nx\r\n--b0undary--\r\n".encode()
        )
        form.finish()
    except InvalidInputError:
        return

    assert form.has_file


def test_a_field_counts_only_when_it_has_come_in_full() -> None:
    form = _form()
    sent = _body([("purpose", b"batch"), ("file", b"")])

    form.feed(sent[: sent.index(b"batch") + 5])
    before = form.fields()
    form.feed(sent[sent.index(b"batch") + 5 :])

    assert before == {}
    assert form.fields() == {"purpose": "batch"}


def test_fields_that_nobody_asked_for_are_dropped() -> None:
    form = _form()

    form.feed(_body([("other", b"x" * 5000), ("file", b"f")]))

    assert form.fields() == {}


def test_a_file_without_a_name_is_called_upload() -> None:
    form = _form()

    form.feed(b'--b0undary\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--b0undary--')

    assert form.filename == "upload"


def test_a_file_may_be_as_large_as_the_limit_and_no_larger() -> None:
    _form(max_file_bytes=5000).feed(_body([("file", b"x" * 5000)]))

    with pytest.raises(InvalidInputError, match=r"^File is too large\."):
        _form(max_file_bytes=5000).feed(_body([("file", b"x" * 5001)]))


@pytest.mark.parametrize("name", ["purpose", "other"])
def test_a_form_may_not_be_large_besides_its_file(name: str) -> None:
    form = _form()
    sent = _body([(name, b"x" * MAX_FORM_BYTES), ("file", b"f")])

    with pytest.raises(TooLargeError):
        for chunk in _cut(sent, list(range(0, len(sent), 10_000))):
            form.feed(chunk)


def test_an_endless_part_header_is_refused() -> None:
    form = _form()
    form.feed(b"--b0undary\r\ncontent-disposition: ")

    with pytest.raises(TooLargeError):
        for _ in range(MAX_FORM_BYTES // 10_000 + 1):
            form.feed(b"x" * 10_000)


@pytest.mark.parametrize("body", [[], [("purpose", b"batch")]])
def test_a_form_without_a_file_is_refused_at_its_end(body: list[tuple[str, bytes]]) -> None:
    form = _form()
    form.feed(_body(body))

    with pytest.raises(InvalidInputError, match="Missing required parameter: 'file'"):
        form.finish()


def test_a_form_that_ends_within_its_file_is_refused() -> None:
    form = _form()
    form.feed(_body([("file", b"x" * 5000)])[:2000])

    with pytest.raises(InvalidInputError, match="ends in the middle"):
        form.finish()


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "multipart/form-data", "multipart/mixed; boundary=b", "é;;"]
)
def test_a_content_type_that_is_no_form_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidInputError, match="could not parse your multipart form"):
        Form(content_type, file_field="file", fields=(), max_file_bytes=1)


def _form(*, max_file_bytes: int = 1_000_000) -> Form:
    return Form(
        f"multipart/form-data; boundary={BOUNDARY}",
        file_field="file",
        fields=("purpose", "expires"),
        max_file_bytes=max_file_bytes,
    )


def _body(parts: list[tuple[str, bytes]]) -> bytes:
    sent = b""
    for name, body in parts:
        named = '; filename="in.jsonl"' if name == "file" else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        sent += head.encode() + body + b"\r\n"
    return sent + f"--{BOUNDARY}--\r\n".encode()


def _cut(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    return [body[start:end] for start, end in pairwise(edges)]


#: The `email` package needs seconds for some ten thousand bytes of these.
SLOW = b'";"' * 20_000


@unhurried
@given(body=st.binary(max_size=1500) | NASTY, cuts=st.lists(st.integers(0, 4000)))
def test_a_long_part_header_behind_the_file_is_refused_before_it_is_read(
    body: bytes, cuts: list[int]
) -> None:
    form = _form()
    before = _body([("file", body)]).removesuffix(b"--\r\n")
    sent = before + b'\r\nContent-Disposition: form-data; name="purpose"; filename="' + SLOW

    with pytest.raises(TooLargeError, match=str(MAX_HEADER_BYTES)):
        for chunk in _cut(sent, cuts):
            form.feed(chunk)

    assert form._fed_bytes < len(before) + MAX_HEADER_BYTES + 600  # noqa: SLF001  # what its parser has seen


def test_a_long_part_header_before_the_file_is_refused_before_it_is_read() -> None:
    form = _form()

    with pytest.raises(TooLargeError, match=str(MAX_HEADER_BYTES)):
        form.feed(b'--b0undary\r\nContent-Disposition: form-data; name="file"; filename="' + SLOW)

    assert form._fed_bytes < MAX_HEADER_BYTES + 600  # noqa: SLF001  # what its parser has seen


def test_a_content_type_is_no_longer_than_all_headers() -> None:
    with pytest.raises(InvalidInputError):
        Form(
            f"multipart/form-data; boundary=b; x={SLOW.decode()}",
            file_field="file",
            fields=(),
            max_file_bytes=1,
        )

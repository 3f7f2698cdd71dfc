import contextlib
import copy
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.messages import (
    MAX_BODY_BYTES,
    MAX_REASONS,
    FileInput,
    InlineInput,
    RejectedError,
    S3Input,
    Submission,
    decode_cancellation,
    decode_submission,
    fingerprint,
    path,
    window_seconds,
)
from shared.errors import InvalidInputError

_SECRET = "the treasure lies under the old oak"
_REQUEST = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": [{"role": "user", "content": _SECRET}]},
}
_REFERENCE = {"kind": "s3", "bucket": "bucket", "key": "k", "etag": "e", "size": 1}


def _submission(**changes: object) -> dict[str, Any]:
    return {
        "schema": "batch.submit/1",
        "endpoint": "/v1/chat/completions",
        "input": {"kind": "inline", "requests": [copy.deepcopy(_REQUEST)]},
        **changes,
    }


def _inline(**changes: object) -> dict[str, Any]:
    return {"kind": "inline", "requests": [_REQUEST, {**_REQUEST, **changes}]}


def _decoded(message: object) -> Submission:
    return decode_submission(json.dumps(message).encode())


def test_a_submission_has_openais_window_and_a_middle_priority_by_default() -> None:
    submission = _decoded(_submission())

    assert submission.completion_window == "24h"
    assert submission.priority == 5
    assert submission.metadata is None


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (_inline(), InlineInput),
        (_REFERENCE, S3Input),
        ({"kind": "file", "file_id": "file-1"}, FileInput),
    ],
)
def test_an_input_is_inline_or_an_object_or_a_file(source: object, kind: type) -> None:
    assert isinstance(_decoded(_submission(input=source)).input, kind)


def test_a_key_has_as_many_bytes_as_s3_takes() -> None:
    source = _decoded(_submission(input={**_REFERENCE, "key": "ü" * 512})).input

    assert isinstance(source, S3Input)


def test_a_whole_number_is_an_integer_as_in_json_schema() -> None:
    submission = _decoded(_submission(priority=7.0))

    assert submission == _decoded(_submission(priority=7))
    assert fingerprint(submission) == fingerprint(_decoded(_submission(priority=7)))


def test_a_packed_body_is_unpacked() -> None:
    packed = gzip.compress(json.dumps(_submission()).encode())

    assert decode_submission(packed, content_encoding="gzip") == _decoded(_submission())


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"schema": "batch.submit/2"}, "schema"),
        ({"endpoint": None}, "endpoint"),
        ({"priority": 10}, "priority"),
        ({"priority": "5"}, "priority"),
        ({"priority": True}, "priority"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "24h\n"}, "completion_window"),
        ({"not_after": 5}, "not_after"),
        ({"not_after": "2026-11-20T10:00:00"}, "not_after"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"surprise": 1}, "surprise"),
        ({"input": None}, "input"),
        ({"input": {"kind": "ftp"}}, "input.kind"),
        ({"input": {}}, "input.kind"),
        ({"input": {"kind": "inline", "requests": []}}, "input.requests"),
        ({"input": {"kind": "inline", "requests": [_REQUEST] * 1001}}, "input.requests"),
        ({"input": _inline(custom_id="")}, "input.requests[1].custom_id"),
        ({"input": _inline(custom_id="a" * 513)}, "input.requests[1].custom_id"),
        ({"input": _inline(method="GET")}, "input.requests[1].method"),
        ({"input": _inline(body="text")}, "input.requests[1].body"),
        ({"input": _inline(body={"temperature": float("nan")})}, "input.requests[1].body"),
        ({"input": _inline(surprise=1)}, "input.requests[1].surprise"),
        ({"input": {**_REFERENCE, "size": 0}}, "input.size"),
        ({"input": {**_REFERENCE, "size": 209_715_201}}, "input.size"),
        ({"input": {**_REFERENCE, "sha256": "abc"}}, "input.sha256"),
        ({"input": {**_REFERENCE, "bucket": "b"}}, "input.bucket"),
        ({"input": {**_REFERENCE, "bucket": "b" * 64}}, "input.bucket"),
        ({"input": {**_REFERENCE, "key": ""}}, "input.key"),
        ({"input": {**_REFERENCE, "key": "a\0"}}, "input.key"),
        ({"input": {**_REFERENCE, "key": "ü" * 513}}, "input.key"),
        ({"input": {**_REFERENCE, "etag": "e" * 257}}, "input.etag"),
        ({"input": {**_REFERENCE, "version_id": "v" * 1025}}, "input.version_id"),
        ({"input": {**_REFERENCE, "version_id": "a\n"}}, "input.version_id"),
        ({"priority": 5.5}, "priority"),
        ({"not_after": "2026-12-24 18:00Z"}, "not_after"),
        ({"not_after": "1795165000"}, "not_after"),
        ({"input": {"kind": "file", "file_id": "../secret"}}, "input.file_id"),
    ],
)
def test_an_error_names_the_field(changes: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        _decoded(_submission(**changes))

    assert refusal.value.param == param
    assert refusal.value.code == "schema_invalid"
    assert str(refusal.value).startswith(f"{param}: ")


@pytest.mark.parametrize(
    "message",
    [
        _submission(endpoint=[_SECRET]),
        _submission(schema=_SECRET),
        _submission(input={"kind": _SECRET}),
        _submission(input=_SECRET),
        _submission(input={"kind": "inline", "requests": _SECRET}),
        _submission(input=_inline(method=_SECRET)),
        _submission(input=_inline(body=_SECRET)),
        _submission(input=_inline(body={"content": _SECRET, "n": float("inf")})),
        _SECRET,
        [_SECRET],
    ],
)
def test_an_error_never_quotes_a_prompt(message: object) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        _decoded(message)

    assert _SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        _SECRET.encode(),
        json.dumps(_submission()).encode()[:-1],
        json.dumps(_submission()).encode() + b"\xff",
        json.dumps(_submission()).encode("utf-16"),
        b'{"schema": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        decode_submission(body)

    assert refusal.value.code == "schema_invalid"
    assert _SECRET not in str(refusal.value)


@pytest.mark.parametrize("body", [b"null", b"[]", b'"text"', b"5"])
def test_what_is_no_object_is_said_of_the_body(body: bytes) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        decode_submission(body)

    assert refusal.value.param is None
    assert str(refusal.value) == "The body: Input should be an object."


def test_every_wrong_field_is_named() -> None:
    wrong = {"priority": 10, "surprise": 1, "input": _inline(custom_id="", method="GET")}

    with pytest.raises(RejectedError) as refusal:
        _decoded(_submission(**wrong))

    assert [reason.param for reason in refusal.value.reasons] == [
        "priority",
        "input.requests[1].custom_id",
        "input.requests[1].method",
        "surprise",
    ]
    assert not refusal.value.is_dead


def test_of_very_many_wrong_fields_some_are_named_and_all_are_counted() -> None:
    with pytest.raises(RejectedError) as refusal:
        _decoded(_submission(**{f"f{number}": 1 for number in range(5000)}))

    assert len(refusal.value.reasons) == MAX_REASONS
    assert refusal.value.count == 5000


@pytest.mark.parametrize(
    ("body", "encoding"), [(b"{", None), (b"x", "gzip"), (b"{}", "br"), (b" " * 2**21, None)]
)
def test_what_cannot_be_read_is_dead(body: bytes, encoding: str | None) -> None:
    with pytest.raises(RejectedError) as refusal:
        decode_submission(body, content_encoding=encoding)

    assert refusal.value.is_dead


@pytest.mark.parametrize("batch_id", ["", "batch_1", "batch_" + "G" * 32, 7])
def test_a_cancellation_names_a_batch(batch_id: object) -> None:
    body = json.dumps({"schema": "batch.cancel/1", "batch_id": batch_id}).encode()

    with pytest.raises(RejectedError) as refusal:
        decode_cancellation(body)

    assert refusal.value.param == "batch_id"


def test_a_body_that_inflates_a_hundredfold_is_too_large() -> None:
    with pytest.raises(RejectedError) as refusal:
        decode_submission(gzip.compress(b" " * 500_000), content_encoding="gzip")

    assert refusal.value.code == "too_large"


def test_the_name_of_an_unknown_field_is_cut() -> None:
    with pytest.raises(InvalidInputError) as refusal:
        _decoded(_submission(**{"x" * 100_000: 1}))

    assert len(str(refusal.value)) < 1000


def test_a_body_above_the_limit_is_too_large() -> None:
    with pytest.raises(InvalidInputError) as refusal:
        decode_submission(b" " * (MAX_BODY_BYTES + 1))

    assert refusal.value.code == "too_large"


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 500 * 1024 * 1024])
def test_a_body_that_inflates_above_the_limit_is_too_large(size: int) -> None:
    bomb = gzip.compress(b" " * 1024 * 1024) * (size // (1024 * 1024) + 1)

    with pytest.raises(InvalidInputError) as refusal:
        decode_submission(bomb, content_encoding="gzip")

    assert refusal.value.code == "too_large"


def test_another_encoding_is_not_understood() -> None:
    with pytest.raises(InvalidInputError) as refusal:
        decode_submission(b"{}", content_encoding="br")

    assert refusal.value.code == "unsupported_media"


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_a_damaged_packed_body_is_refused(place: int, damage: bytes) -> None:
    packed = gzip.compress(json.dumps(_submission()).encode())
    place %= len(packed)
    damaged = packed[:place] + damage + packed[place + len(damage) :]

    _decoded_or_refused(damaged, "gzip")


@given(st.binary(max_size=200), st.sampled_from([None, "gzip"]))
def test_garbage_is_refused(body: bytes, encoding: str | None) -> None:
    _decoded_or_refused(body, encoding)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    st.dictionaries(
        st.sampled_from(["schema", "endpoint", "input", "priority", "metadata", "not_after"])
        | st.text(max_size=10),
        _JSON
        | st.fixed_dictionaries(
            {"kind": st.sampled_from(["inline", "s3", "file"]) | _JSON},
            optional={"requests": _JSON | st.lists(st.fixed_dictionaries({"body": _JSON}))},
        ),
        max_size=6,
    )
)
def test_odd_json_is_refused(changes: dict[str, object]) -> None:
    _decoded_or_refused(json.dumps(_submission(**changes)).encode(), None)


@given(_JSON)
def test_what_is_accepted_can_be_sent_on_as_it_came(body: object) -> None:
    message = _submission(input=_inline(body={"any": body}))
    try:
        submission = _decoded(message)
    except InvalidInputError:
        return

    assert isinstance(submission.input, InlineInput)
    sent = json.dumps(submission.input.requests[1].body, allow_nan=False).encode("utf-8")
    assert json.loads(sent) == {"any": body}


def test_equal_submissions_have_one_fingerprint_however_they_are_written() -> None:
    written = json.dumps(_submission(priority=5))
    otherwise = json.dumps(_submission(), indent=2, sort_keys=True)

    first, second = (decode_submission(text.encode()) for text in (written, otherwise))

    assert fingerprint(first) == fingerprint(second)


@pytest.mark.parametrize(
    "changes", [{"priority": 6}, {"input": _inline()}, {"metadata": {"k": "v"}}]
)
def test_other_submissions_have_another_fingerprint(changes: dict[str, object]) -> None:
    assert fingerprint(_decoded(_submission(**changes))) != fingerprint(_decoded(_submission()))


@pytest.mark.parametrize(("window", "seconds"), [("1h", 3600), ("24h", 86_400), ("7d", 604_800)])
def test_a_window_is_hours_or_days(window: str, seconds: int) -> None:
    assert window_seconds(window) == seconds


def test_a_path_reads_as_python_would_write_it() -> None:
    assert path(("input", "inline", "requests", 3, "body")) == "input.requests[3].body"


def _decoded_or_refused(body: bytes, encoding: str | None) -> None:
    with contextlib.suppress(InvalidInputError):
        decode_submission(body, content_encoding=encoding)

import gzip
import json
from typing import Any

import pytest

from shared.bus.messages import RejectedError
from shared.bus.open_messages import decode_closing, decode_requests

_BATCH = f"batch_{'0' * 32}"
_REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m"}}


def _body(**changes: Any) -> bytes:
    body = {"schema": "batch.requests/1", "batch_id": _BATCH, "requests": [_REQUEST], **changes}
    return json.dumps({name: one for name, one in body.items() if one is not None}).encode()


def test_the_requests_keep_the_bytes_that_they_were_sent_with() -> None:
    text = '{"custom_id":"a" , "method":"POST","url":"/","body":{"n": 1.00,"s":"\\u00fc"}}'
    body = f'{{"schema":"batch.requests/1","batch_id":"{_BATCH}","requests":[{text}]}}'

    given = decode_requests(gzip.compress(body.encode()), content_encoding="gzip")

    assert given == (_BATCH, f"[{text}]".encode())


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"schema": "batch.submit/1"}, "schema"),
        ({"batch_id": "order-17"}, "batch_id"),
        ({"requests": []}, "requests"),
        ({"requests": [_REQUEST] * 1001}, "requests"),
        ({"requests": [_REQUEST, {**_REQUEST, "custom_id": ""}]}, "requests[1].custom_id"),
        ({"requests": [{**_REQUEST, "priority": 1}]}, "requests[0].priority"),
        ({"priority": 1}, "priority"),
        ({"requests": None}, "requests"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(RejectedError) as refused:
        decode_requests(_body(**changes))

    assert [(reason.code, reason.param) for reason in refused.value.reasons] == [
        ("schema_invalid", param)
    ]


def test_a_larger_message_is_told_to_be_several() -> None:
    with pytest.raises(RejectedError, match="several messages") as refused:
        decode_requests(b" " * 2_000_000)

    assert refused.value.reasons[0].code == "too_large"


def test_a_closing_names_its_batch_and_nothing_else() -> None:
    body = {"schema": "batch.close/1", "batch_id": _BATCH}

    assert decode_closing(json.dumps(body).encode()).batch_id == _BATCH
    with pytest.raises(RejectedError, match="when"):
        decode_closing(json.dumps({**body, "when": "now"}).encode())

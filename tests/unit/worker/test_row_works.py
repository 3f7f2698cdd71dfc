import json
from math import inf

from shared.input.beginnings import beginning
from shared.slices import Claim, Slice
from worker.row_works import works


def line(**body: object) -> bytes:
    return json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": body}).encode()


CLAIM = Claim(
    lane="m@gpu",
    batch_id="b",
    index=3,
    epoch=1,
    strikes=0,
    slice=Slice(0, 100, 10, 3, 30, mask=",1,0,4"),
    bucket="b",
    key="k",
    etag="e",
    endpoint="/v1/chat/completions",
    tenant="acme",
    priority=7,
    batch_rows=50,
    weight=2.5,
)


def test_each_row_brings_its_own_beginning_kind_and_limit() -> None:
    messages = [{"role": "system", "content": "Be brief. " * 100}, {"role": "user", "content": "a"}]
    lines = [line(messages=messages, max_tokens=5), line(messages=messages), b"not a request"]

    limited, unlimited, unknown = works(CLAIM, lines)

    assert [work.number for work in (limited, unlimited, unknown)] == [11, 12, 17]
    assert limited.prefix == unlimited.prefix == beginning(lines[0]).prefix != ()
    assert (limited.max_output, unlimited.max_output, unknown.max_output) == (5, inf, inf)
    assert 0 != limited.kind != unlimited.kind != 0
    assert (unknown.prefix, unknown.kind) == ((), 0)
    assert {
        (work.priority, work.tokens, work.batch_rows, work.weight) for work in works(CLAIM, lines)
    } == {(7, 10, 50, 2.5)}

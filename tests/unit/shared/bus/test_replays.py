import gzip
import json
from typing import Any

import pytest

from shared.bus.messages import RejectedError
from shared.bus.replays import OfBatch, Since, decode_replay
from shared.bus.topology import may_receive
from shared.errors import InvalidInputError

BATCH = f"batch_{1:032x}"


def body(**fields: Any) -> bytes:
    return json.dumps({"schema": "batch.replay/1", **fields}).encode()


def test_one_batch_or_a_time_can_be_asked_for() -> None:
    assert isinstance(decode_replay(body(batch_id=BATCH)), OfBatch)
    since = decode_replay(body(since="2026-11-20T10:00:00.123456+01:00"))

    assert isinstance(since, Since)
    assert since.since.microsecond == 123_456


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        (b"no", "JSON"),
        (b"[]", "'since'"),
        (body(), "'since'"),
        (body(batch_id=BATCH, since="2026-11-20T10:00:00Z"), "not both"),
        (body(batch_id="batch_1"), "batch_id"),
        (body(since="2026-11-20T10:00:00"), "since"),
        (body(since=1_795_165_000), "since"),
        (body(batch_id=BATCH, more=1), "more"),
        (json.dumps({"batch_id": BATCH}).encode(), "schema"),
        (body(since="x" * 5000), "at most"),
    ],
)
def test_what_is_wrong_is_named(sent: bytes, word: str) -> None:
    with pytest.raises(InvalidInputError, match=word):
        decode_replay(sent)


@pytest.mark.parametrize(
    ("sent", "params"),
    [
        (
            {"schema": "batch.replay/2", "batch_id": "batch_1", "more": 1},
            ["schema", "batch_id", "more"],
        ),
        ({"schema": "batch.replay/2", "more": 1}, [None, "schema", "more"]),
        ({"schema": "batch.replay/1", "batch_id": BATCH, "since": 1}, [None, "since"]),
        ({"schema": "batch.replay/1", "batch_id": 1, "since": 1}, [None, "batch_id", "since"]),
    ],
)
def test_everything_wrong_is_named(sent: dict[str, Any], params: list[str | None]) -> None:
    with pytest.raises(RejectedError) as raised:
        decode_replay(json.dumps(sent).encode())

    assert sorted(map(str, params)) == sorted(str(one.param) for one in raised.value.reasons)


def test_a_request_may_be_packed() -> None:
    packed = gzip.compress(body(batch_id=BATCH))

    assert isinstance(decode_replay(packed, content_encoding="gzip"), OfBatch)


@pytest.mark.parametrize(
    ("queue", "is_own"),
    [
        ("sub.acme.orders", True),
        ("reply.acme.1", True),
        ("amq.rabbitmq.reply-to.g1h2=", True),
        ("", False),
        ("sub.globex.x", False),
        ("sub.acme2.x", False),
        ("sub.acme", False),
        ("batch.submit.v1", False),
        ("sub.acme.x\n", False),
    ],
)
def test_only_a_queue_of_the_tenants_own_gets_its_events(queue: str, *, is_own: bool) -> None:
    assert may_receive("acme", queue, "sub", "reply") == is_own

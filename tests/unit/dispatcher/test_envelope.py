from typing import Any

import pytest

from dispatcher.envelope import Envelope, malformed, unauthorised
from shared.bus.unreadable import UNREADABLE

_PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def _envelope(
    *, user: str | None = "acme", key: str = "submit.v1.acme", headers: Any = None, **changes: Any
) -> Envelope:
    defaults = {
        "message_id": "m-1",
        "type": "batch.submit.v1",
        "content_type": "application/json",
        "delivery_mode": 2,
        **changes,
    }
    properties = {name: value for name, value in defaults.items() if value is not None}
    return Envelope(user, "batch.submit", key, properties, headers or {})


def test_a_message_after_the_contract_has_nothing_wrong() -> None:
    envelope = _envelope(
        content_type="application/json; charset=UTF-8",
        reply_to="reply.acme.orders-1",
        correlation_id="x" * 128,
        headers={"x-tenant": "acme", "x-schema": "batch.submit/1", "mine": [1, {"a": None}]},
    )

    assert [*unauthorised(envelope), *malformed(envelope)] == []
    assert (envelope.tenant, envelope.can_be_answered) == ("acme", True)


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("reply.acme.a", True),
        ("reply.acme." + "a" * 100, True),
        ("reply.acme." + "a" * 101, False),
        ("reply.acme.", False),
        ("reply.acme2.a", False),
        ("reply.globex.a", False),
        ("reply.acme.a/b", False),
        ("reply.acme.ä", False),
        ("reply.acme.a\n", False),
        ("batch.submit.v1", False),
        ("amq.rabbitmq.reply-to.g1h2.x==", True),
        ("amq.rabbitmq.reply-to.", False),
        ("amq.rabbitmq.reply-to", False),
        ("amq.rabbitmq.reply-to.a b", False),
    ],
)
def test_an_answer_goes_to_the_senders_own_queues_only(address: str, is_ours: bool) -> None:
    envelope = _envelope(reply_to=address)

    assert (envelope.reply_to == address) is is_ours
    assert [reason.code for reason in malformed(envelope)] == [] if is_ours else ["bad_reply_to"]


def test_events_may_be_asked_for_into_a_subscribers_queue_too() -> None:
    replay: dict[str, Any] = {"type": "batch.replay.v1", "key": "replay.v1.acme"}
    headers = {"x-schema": "batch.replay/1"}

    asked = _envelope(**replay, reply_to="sub.acme.orders", headers=headers)
    submitted = _envelope(reply_to="sub.acme.orders")
    elsewhere = _envelope(**replay, reply_to="sub.globex.orders")
    nowhere = _envelope(**replay)

    assert [*unauthorised(asked), *malformed(asked)] == []
    assert (asked.can_be_answered, submitted.can_be_answered) == (True, False)
    assert [reason.code for reason in malformed(elsewhere)] == ["bad_reply_to"]
    assert [reason.param for reason in malformed(nowhere)] == ["reply_to"]


def test_the_tenant_comes_from_the_broker_and_from_nothing_else() -> None:
    envelope = _envelope(user=None, headers={"x-tenant": "acme"})

    [reason] = unauthorised(envelope)
    assert (reason.code, reason.param) == ("tenant_mismatch", "user_id")
    assert not envelope.can_be_answered


@pytest.mark.parametrize("user", ["Acme", "a.b", "-a", "a" * 64])
def test_a_login_that_is_no_tenants_name_proves_nothing(user: str) -> None:
    assert _envelope(user=user).tenant is None


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("batch.submit.v1", "cancel.v1.acme"),
        ("batch.cancel.v1", "submit.v1.acme"),
        ("batch.requests.v1", "submit.v1.acme"),
        ("batch.close.v1", "requests.v1.acme"),
        ("batch.replay.v1", "submit.v1.acme"),
    ],
)
def test_each_type_has_its_own_key(kind: str, key: str) -> None:
    assert [reason.code for reason in unauthorised(_envelope(type=kind, key=key))] == [
        "bad_routing_key"
    ]


@pytest.mark.parametrize("kind", ["submit", "requests", "close", "cancel", "replay"])
def test_an_unknown_type_under_a_key_of_the_tenant_has_no_problem_but_its_type(kind: str) -> None:
    envelope = _envelope(type="batch.unheard.v1", key=f"{kind}.v1.acme")

    assert list(unauthorised(envelope)) == []
    assert [reason.param for reason in malformed(envelope)] == ["type"]


@pytest.mark.parametrize("key", ["submit.v1.other", "submit.v1", "", "nothing.v1.acme"])
def test_an_unknown_type_is_no_way_to_another_key(key: str) -> None:
    reasons = list(unauthorised(_envelope(type="batch.unheard.v1", key=key)))

    assert [reason.code for reason in reasons] == ["bad_routing_key"]


@pytest.mark.parametrize(
    ("headers", "trace"),
    [
        ({"traceparent": _PARENT, "tracestate": "a=1"}, (_PARENT, "a=1")),
        ({"traceparent": _PARENT}, (_PARENT, "")),
        ({"traceparent": _PARENT, "tracestate": "a" * 513}, (_PARENT, "")),
        ({"traceparent": _PARENT.upper(), "tracestate": "a=1"}, ("", "")),
        ({"traceparent": [_PARENT]}, ("", "")),
        ({"tracestate": "a=1"}, ("", "")),
    ],
)
def test_a_trace_is_w3cs_or_none(headers: dict[str, Any], trace: tuple[str, str]) -> None:
    assert _envelope(headers=headers).trace == trace


@pytest.mark.parametrize(
    ("headers", "is_right"),
    [
        ({"a": "x" * 8000}, True),
        ({"a": "x" * 8200}, False),
        ({"x-death": [{"reason": "x" * 9000}], "x-delivery-count": 3}, True),
        ({"a": object()}, False),
    ],
    ids=["small", "large", "the broker's", "of no AMQP type"],
)
def test_the_senders_headers_have_a_limit(headers: dict[str, Any], is_right: bool) -> None:
    assert [reason.param for reason in malformed(_envelope(headers=headers))] == (
        [] if is_right else ["headers"]
    )


def test_unreadable_properties_are_said_to_be_so() -> None:
    envelope = Envelope(None, "batch.submit", "x", {}, {UNREADABLE: bytearray(b"\xff")})

    assert next(iter(malformed(envelope))).param == "properties"

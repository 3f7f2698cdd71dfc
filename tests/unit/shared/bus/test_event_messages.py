import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_structured_event

from shared.bus.event_messages import STRUCTURED, EventMessages
from shared.bus.event_shapes import EVENT_TYPES
from shared.state.outbox import Entry
from shared.storage import Storage

BATCH = f"batch_{1:032x}"
AT = 1_795_165_000
OUTPUT = {"bucket": "b", "key": "k.jsonl", "etag": "e", "size": 10, "sha256": "0"}


def entry(kind: str = "batch.completed", **changes: str) -> Entry:
    snapshot = {
        "id": BATCH,
        "tenant": "acme",
        "endpoint": "/v1/chat/completions",
        "input_file_id": "file-1",
        "completion_window": "24h",
        "status": kind.partition(".")[2],
        "created_at": str(AT),
        "expires_at": str(AT + 86_400),
        "total": "2",
        "completed": "2",
        "output_object": json.dumps(OUTPUT),
        "metadata": '{"b":"1","a":"2"}',
        **changes,
    }
    return Entry(
        "1-0",
        {
            "type": kind,
            "sequence": "4",
            "at_ms": f"{AT}250",
            "snapshot": json.dumps(snapshot),
        },
    )


@pytest.fixture
def signer() -> Storage:
    # Nobody answers there: to sign takes no call.
    return Storage("http://s3.example:9000", "key", "secret", "batchyard")


async def test_a_structured_event_is_what_any_cloudevents_library_reads() -> None:
    message = await EventMessages().of(entry(correlation_id="order-17"))

    read = from_structured_event(RabbitMQMessage({}, STRUCTURED, message.body))
    assert read.get_id() == f"evt_{BATCH}_00000004"
    assert read.get_source() == f"/tenants/acme/batches/{BATCH}"
    assert (read.get_type(), read.get_subject()) == ("batch.completed", BATCH)
    assert read.get_extension("sequence") == "00000004"
    assert message.routing_key == f"batch.completed.acme.{BATCH}"
    assert message.properties == {
        "message_id": read.get_id(),
        "type": "batch.completed",
        "correlation_id": "order-17",
        "timestamp": read.get_time(),
        "content_type": STRUCTURED,
    }


async def test_the_data_are_of_their_published_shape(signer: Storage) -> None:
    messages = EventMessages(signer=signer, url_seconds=900)

    for kind in ("batch.in_progress", "batch.completed", "batch.failed"):
        body = (await messages.of(entry(kind, first_error="why"))).body

        data = json.loads(body)["data"]
        assert EVENT_TYPES[kind].data(**data).model_dump(mode="json") == data


async def test_each_attribute_is_a_header_besides() -> None:
    message = await EventMessages().of(entry(correlation_id="order-17"))

    attributes = json.loads(message.body)
    del attributes["data"]
    assert message.headers == {f"cloudEvents_{name}": text for name, text in attributes.items()}


async def test_the_end_of_a_pipeline_has_the_same_envelope() -> None:
    name = f"pipeline_{1:032x}"
    snapshot = json.dumps({"id": name, "tenant": "acme", "status": "expired"})
    fields = {"type": "pipeline.expired", "sequence": "1", "at_ms": f"{AT}000"}
    end = Entry("1-0", {**fields, "snapshot": snapshot, "pipeline": '{"id": "it", "rows": 3}'})

    message = await EventMessages().of(end)

    event = json.loads(message.body)
    assert (event["id"], event["sequence"]) == (f"evt_{name}_00000001", "00000001")
    assert (event["source"], event["subject"]) == (f"/tenants/acme/pipelines/{name}", name)
    assert event["data"] == {"id": "it", "rows": 3}
    assert message.routing_key == f"pipeline.expired.acme.{name}"


@pytest.mark.parametrize(
    ("tenants", "is_binary"), [((), False), (("globex",), False), (("acme",), True), (("*",), True)]
)
async def test_binary_mode_is_for_the_tenants_who_chose_it(
    tenants: tuple[str, ...], *, is_binary: bool
) -> None:
    message = await EventMessages(binary_tenants=frozenset(tenants)).of(entry())

    assert (message.properties["content_type"] == "application/json") == is_binary
    assert ("specversion" in json.loads(message.body)) != is_binary


async def test_both_modes_say_the_same() -> None:
    structured = await EventMessages().of(entry())
    binary = await EventMessages(binary_tenants=frozenset({"acme"})).of(entry())

    # The content type is that of the data, and so no header.
    assert structured.headers == {
        **binary.headers,
        "cloudEvents_datacontenttype": binary.properties["content_type"],
    }
    assert json.loads(structured.body)["data"] == json.loads(binary.body)
    assert structured.routing_key == binary.routing_key


async def test_an_entry_is_always_the_same_bytes(signer: Storage) -> None:
    messages = EventMessages(signer=signer, url_seconds=900)
    turned = entry()
    fields = dict(reversed(turned.snapshot().items()))

    first = await messages.of(entry())
    again = await messages.of(Entry("", {**turned.fields, "snapshot": json.dumps(fields)}))

    assert again == first


async def test_sequences_compare_as_text() -> None:
    numbers = [9, 10, 99_999_999]

    found = [
        json.loads((await EventMessages().of(_numbered(number))).body)["sequence"]
        for number in numbers
    ]

    assert found == sorted(found) == ["00000009", "00000010", "99999999"]


async def test_a_url_lasts_from_the_events_own_time(signer: Storage) -> None:
    messages = EventMessages(signer=signer, url_seconds=900)

    output = await _output(messages, entry())

    url = urlsplit(output["url"])
    query = parse_qs(url.query)
    assert (url.netloc, url.path) == ("s3.example:9000", "/batchyard/k.jsonl")
    assert query["X-Amz-Date"] == ["20261120T085640Z"]
    assert query["X-Amz-Expires"] == ["900"]
    assert output["url_expires_at"] == AT + 900
    assert {name: output[name] for name in OUTPUT} == OUTPUT


async def test_there_is_no_url_unless_the_deployment_wants_it() -> None:
    assert await _output(EventMessages(), entry()) == OUTPUT


@pytest.mark.parametrize("kind", ["batch.in_progress", "batch.progress", "batch.finalizing"])
async def test_only_the_end_has_a_url(kind: str, signer: Storage) -> None:
    messages = EventMessages(signer=signer, url_seconds=900)
    message = await messages.of(entry(kind, status="in_progress"))

    assert b"X-Amz" not in message.body


async def test_an_event_of_a_slice_says_which() -> None:
    committed = entry("slice.committed", status="in_progress")
    slice_ = {"index": 1, "first_row": 10, "rows": 10, "completed": 9, "failed": 1}

    message = await EventMessages().of(
        Entry("", {**committed.fields, "slice": json.dumps(slice_)}),
    )

    assert message.routing_key == f"slice.committed.acme.{BATCH}"
    assert json.loads(message.body)["data"]["slice"] == slice_


def _numbered(number: int) -> Entry:
    return Entry("", {**entry().fields, "sequence": str(number)})


async def _output(messages: EventMessages, one: Entry) -> dict[str, Any]:
    output: dict[str, Any] = json.loads((await messages.of(one)).body)["data"]["output"]
    return output

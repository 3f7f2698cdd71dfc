import base64
import csv
import io
from typing import Any

import httpx
import openai
import pytest

from shared.ledger.datasets import read_dataset
from shared.ledger.tables import wanted_of
from shared.state import State
from shared.storage import Storage
from tests.integration.gateway.conftest import Caller

CHAT = "/v1/chat/completions"


async def test_the_sdk_creates_a_batch_over_a_table(
    acme: Caller, bucket: Storage, gateway_state: State
) -> None:
    await _put(acme, bucket, "a.csv", "one", "two")

    batch = await acme.openai.batches.create(
        input_file_id=openai.omit,  # type: ignore[arg-type]  # the SDK knows of no other input
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"input": _input(acme, bucket)},
    )

    assert batch.status == "validating"
    assert batch.input_file_id.startswith("file-")
    record = await gateway_state.batches.get(batch.id)
    pinned = await read_dataset(bucket, record.fields["dataset"])
    [source] = pinned.sources
    assert (source.format, source.name) == ("csv", _input(acme, bucket)["objects"])
    assert source.etag == (await bucket.stat(source.key)).etag


async def test_the_same_key_gives_the_same_batch_and_another_template_is_a_conflict(
    acme: Caller, bucket: Storage
) -> None:
    await _put(acme, bucket, "a.csv", "one")
    wanted = _input(acme, bucket)

    first = await _create(acme, wanted, idempotency_key="k")
    await bucket.remove([f"inbox/{acme.tenant}/a.csv"])
    second = await _create(acme, wanted, idempotency_key="k")
    other = await _create(acme, {**wanted, "limit": 1}, idempotency_key="k")

    assert first.json()["id"] == second.json()["id"]
    assert other.status_code == 409


async def test_a_wrong_input_is_refused_with_its_place(acme: Caller, bucket: Storage) -> None:
    await _put(acme, bucket, "a.csv", "one")
    wanted = _input(acme, bucket)
    foreign = {"objects": f"s3://{bucket.bucket}/files/"}

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"template": {"a": ["{{ x"]}}, "input.template.a[0]"),
        ({"filter": "x ="}, "input.filter"),
        ({"objects": "http://a/b"}, "input.objects"),
        (foreign, "input.objects"),
        ({"limit": 0}, "input.limit"),
        ({"sample": {"fraction": 2}}, "input.sample.fraction"),
        ({"tempalte": {}}, "input.tempalte"),
        ({"file_id": "file-x"}, "input"),
    ]
    for changes, param in wrong:
        answer = await _create(acme, {**wanted, **changes})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_url_with_many_stars_holds_nobody_up(acme: Caller, bucket: Storage) -> None:
    # By a regular expression, this takes longer than anybody waits, and nobody else is answered.
    await _put(acme, bucket, f"{'a' * 60}.csv", "one")
    objects = f"s3://{bucket.bucket}/inbox/{acme.tenant}/{'*a' * 20}b.csv"

    answer = await _create(acme, {**_input(acme, bucket), "objects": objects})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input.objects")


async def test_a_batch_has_one_input(acme: Caller, bucket: Storage) -> None:
    await _put(acme, bucket, "a.csv", "one")

    both = await _create(acme, _input(acme, bucket), input_file_id="file-x")
    none = await _create(acme, None)

    assert both.json()["error"]["param"] == "input"
    assert none.json()["error"]["message"] == "Missing required parameter: 'input_file_id'."


async def test_an_uploaded_table_is_an_input(acme: Caller, gateway_state: State) -> None:
    file = await acme.openai.files.create(file=("t.csv", b"text\na\n"), purpose="user_data")
    wanted = {"file_id": file.id, "template": {"model": "tiny", "messages": "{{ text }}"}}

    answer = await _create(acme, wanted)

    assert answer.status_code == 200
    assert "dataset" in (await gateway_state.batches.get(answer.json()["id"])).fields


async def test_a_dry_run_shows_the_first_rows_and_reads_them_all(
    acme: Caller, bucket: Storage
) -> None:
    await _put(acme, bucket, "a.csv", *"abcde")
    before = await bucket.keys("")

    found = (await _create(acme, _input(acme, bucket), dry_run=True)).json()

    assert (found["object"], found["rows"], found["errors"]) == ("batch.dry_run", 5, None)
    assert [one["custom_id"] for one in found["rendered"]] == ["row-1", "row-2", "row-3"]
    assert found["rendered"][0]["body"]["messages"] == [{"role": "user", "content": "Say a"}]
    assert await bucket.keys("") == before


@pytest.mark.parametrize(
    ("begin", "kind"),
    [(b"\xff\xd8\xff", "jpeg"), (b"\x89PNG", "png"), (b"GIF89a", "gif"), (b"RIFF", "webp")],
)
async def test_an_uploaded_picture_says_what_it_is(acme: Caller, begin: bytes, kind: str) -> None:
    file = await acme.openai.files.create(file=("a.png", begin), purpose="user_data")
    says = [{"role": "user", "content": "{{ image }}"}]
    wanted = {"file_id": file.id, "template": {"model": "tiny", "messages": says}}

    found = (await _create(acme, wanted, dry_run=True)).json()

    [request] = found["rendered"]
    image = request["body"]["messages"][0]["content"]
    assert image == f"data:image/{kind};base64,{base64.b64encode(begin).decode()}"


async def test_what_is_no_picture_is_told(acme: Caller) -> None:
    file = await acme.openai.files.create(file=("a.png", b"a page"), purpose="user_data")
    wanted = {"file_id": file.id, "template": {"model": "tiny", "messages": "{{ image }}"}}

    found = (await _create(acme, wanted, dry_run=True)).json()

    [error] = found["errors"]["data"]
    assert (error["code"], "no PNG" in error["message"]) == ("unreadable_dataset", True)


async def test_a_dry_run_tells_of_every_bad_row(acme: Caller, bucket: Storage) -> None:
    await _put(acme, bucket, "a.csv", "1", "no number", "2", "nor this")
    wanted = _input(acme, bucket)
    wanted["template"] |= {"max_tokens": "{{ 1 // text }}"}

    found = (await _create(acme, wanted, dry_run=True)).json()

    assert not found["valid"]
    assert [(one["line"], one["param"]) for one in found["errors"]["data"]] == [
        (row, "input.template.max_tokens") for row in (1, 2, 3, 4)
    ]
    assert "no number" not in str(found)


async def test_a_dry_run_tells_of_a_wrong_model_once(acme: Caller, bucket: Storage) -> None:
    await _put(acme, bucket, "a.csv", "a", "b")
    wanted = _input(acme, bucket)
    wanted["template"] |= {"model": "nope"}

    found = (await _create(acme, wanted, dry_run=True)).json()

    [error] = found["errors"]["data"]
    assert (error["code"], error["param"]) == ("model_not_found", "input.template.model")
    assert "rendered" not in found


async def test_a_batch_asks_for_a_table_by_http(
    acme: Caller, bucket: Storage, gateway_state: State
) -> None:
    await _put(acme, bucket, "a.csv", "one")
    place = f"s3://{bucket.bucket}/inbox/{acme.tenant}/answers/"
    wanted = {**_input(acme, bucket), "carry": ["text"]}

    made = await _create(acme, wanted, output={"format": "csv", "destination": place})

    record = await gateway_state.batches.get(made.json()["id"])
    table = wanted_of(record.fields["output"])
    names = ["custom_id", "text", "answer", "finish_reason", "input_tokens", "output_tokens"]
    assert (table.format, table.destination) == ("csv", place)
    assert [one.name for one in table.columns] == [*names, "error_code", "error"]


async def test_a_wrong_table_is_refused_with_its_place(acme: Caller, bucket: Storage) -> None:
    await _put(acme, bucket, "a.csv", "one")
    wanted = {**_input(acme, bucket), "carry": ["answer"]}
    wrong: list[tuple[dict[str, Any] | None, str]] = [
        (None, "input.carry"),
        ({"format": "xlsx"}, "output.format"),
        ({"columns": ["input.text"]}, "output.columns"),
        ({"columns": ["nope"]}, "output.columns"),
        ({}, "output.columns"),
        ({"columns": ["answer"], "schema": {"type": "what"}}, "output.schema"),
        ({"columns": ["answer"], "destination": "s3://other/x/"}, "output.destination"),
        ({"columns": ["answer"], "retries": 2}, "output.retries"),
        ({"columns": ["answer"], "retries": 11}, "output.retries"),
    ]
    for output, param in wrong:
        more = {} if output is None else {"output": output}
        answer = await _create(acme, wanted, **more)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def _put(caller: Caller, bucket: Storage, name: str, *texts: str) -> None:
    table = io.StringIO()
    csv.writer(table).writerows([["text"], *([text] for text in texts)])
    await bucket.put(f"inbox/{caller.tenant}/{name}", table.getvalue().encode())


def _input(caller: Caller, bucket: Storage) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say {{ text }}"}]
    return {
        "objects": f"s3://{bucket.bucket}/inbox/{caller.tenant}/a.csv",
        "template": {"model": "tiny", "messages": messages},
    }


async def _create(caller: Caller, wanted: dict[str, Any] | None, **more: Any) -> httpx.Response:
    body = {"endpoint": CHAT, "completion_window": "24h", **more}
    return await caller.http.post("/v1/batches", json=body | ({"input": wanted} if wanted else {}))

import asyncio
import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError
from openai.types import Upload

from gateway.upload_rules import MAX_PART_BYTES
from shared.state import FileRecord, State
from shared.storage import Storage
from tests.integration.gateway.conftest import Caller, Gateway

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"tiny"}}\n'
BOUNDARY = "frontier"
MULTIPART = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
MIB = 1024 * 1024


@pytest.mark.parametrize("part_size", [6 * MIB, 1_000_000, 64 * MIB])
async def test_the_sdk_uploads_a_file_in_chunks(part_size: int, acme: Caller) -> None:
    body = random.Random(part_size).randbytes(13_000_001)

    upload = await acme.openai.uploads.upload_file_chunked(
        file=body,
        filename="big.bin",
        bytes=len(body),
        mime_type="application/octet-stream",
        purpose="user_data",
        part_size=part_size,
        md5=hashlib.md5(body, usedforsecurity=False).hexdigest(),
    )

    assert (upload.status, upload.bytes, upload.purpose) == ("completed", len(body), "user_data")
    file = upload.file
    assert file is not None
    assert (file.filename, file.bytes, file.status) == ("big.bin", len(body), "processed")
    assert await acme.openai.files.retrieve(file.id) == file
    assert (await acme.openai.files.content(file.id)).content == body


async def test_the_sdk_uploads_a_file_from_the_disk(acme: Caller, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINE * 100)

    upload = await acme.openai.uploads.upload_file_chunked(
        file=tmp_path / "in.jsonl", mime_type="application/jsonl", purpose="batch"
    )

    assert upload.file is not None
    assert (upload.file.filename, upload.file.bytes) == ("in.jsonl", 100 * len(LINE))


async def test_every_key_of_an_upload_is_sent(acme: Caller) -> None:
    begun = await acme.http.post("/v1/uploads", json=_params(bytes=5))
    upload = begun.json()
    part = await acme.http.post(f"/v1/uploads/{upload['id']}/parts", files={"data": b"hello"})
    completed = await acme.http.post(
        f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part.json()["id"]]}
    )

    assert [answer.status_code for answer in (begun, part, completed)] == [200, 200, 200]
    assert abs(upload["created_at"] - time.time()) < 60
    assert upload == {
        "id": upload["id"],
        "object": "upload",
        "bytes": 5,
        "created_at": upload["created_at"],
        "expires_at": upload["created_at"] + 3600,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "pending",
        "file": None,
    }
    assert upload["id"].startswith("upload_")
    assert part.json() == {
        "id": part.json()["id"],
        "object": "upload.part",
        "created_at": part.json()["created_at"],
        "upload_id": upload["id"],
    }
    assert part.json()["id"].startswith("part_")
    file = completed.json()["file"]
    assert completed.json() == {**upload, "status": "completed", "file": file}
    assert file == {
        "id": file["id"],
        "object": "file",
        "bytes": 5,
        "created_at": file["created_at"],
        "expires_at": file["created_at"] + 30 * 86_400,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }


async def test_parts_come_in_parallel_and_the_completion_says_their_order(acme: Caller) -> None:
    chunks = [b"%03d;" % number for number in range(24)]
    upload = await _begin(acme, bytes=sum(map(len, chunks)))

    backwards = await asyncio.gather(*(_add(acme, upload, chunk) for chunk in reversed(chunks)))
    completed = await acme.openai.uploads.complete(upload.id, part_ids=backwards[::-1])

    assert completed.file is not None
    content = await acme.openai.files.content(completed.file.id)
    assert content.content == b"".join(chunks)


async def test_parts_that_are_not_named_are_left_out(acme: Caller, bucket: Storage) -> None:
    upload = await _begin(acme, bytes=4)
    _, second, _ = [await _add(acme, upload, body) for body in (b"lost", b"kept", b"junk")]

    completed = await acme.openai.uploads.complete(upload.id, part_ids=[second])

    assert completed.file is not None
    assert (await acme.openai.files.content(completed.file.id)).content == b"kept"
    assert len(await bucket.keys(f"files/{acme.tenant}/")) == 2


async def test_an_empty_file_needs_no_parts(acme: Caller) -> None:
    upload = await acme.openai.uploads.upload_file_chunked(
        file=b"", filename="empty.jsonl", bytes=0, mime_type="text/jsonl", purpose="batch"
    )

    assert upload.file is not None
    assert (await acme.openai.files.content(upload.file.id)).content == b""


@pytest.mark.parametrize(
    ("content_type", "head"),
    [
        (MULTIPART["content-type"], 'Content-Disposition: form-data; name="data"'),
        (MULTIPART["content-type"], "content-disposition: form-data; name=data; filename=blob"),
        (
            f'Multipart/Form-Data; charset=utf-8; boundary="{BOUNDARY}"',
            'Content-Disposition: form-data; name="data"; filename="x"\r\n'
            "Content-Type: application/octet-stream\r\nContent-Length: 5",
        ),
        (
            MULTIPART["content-type"],
            'Content-Disposition: form-data; name="data"; filename="_"; filename*=UTF-8\'\'%C3%B6',
        ),
    ],
)
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_every_spelling_of_a_part_is_understood(
    content_type: str, head: str, is_chunked: bool, acme: Caller
) -> None:
    upload = await _begin(acme, bytes=5)
    other = 'Content-Disposition: form-data; name="other"\r\n\r\nx'
    body = "".join(
        f"--{BOUNDARY}\r\n{part}\r\n" for part in (other, f"{head}\r\n\r\n\r\nab\n", other)
    )
    form = f"{body}--{BOUNDARY}--\r\n".encode()

    async def pieces() -> object:
        for start in range(0, len(form), 7):
            yield form[start : start + 7]

    answer = await acme.http.post(
        f"/v1/uploads/{upload.id}/parts",
        headers={"content-type": content_type},
        content=pieces() if is_chunked else form,  # type: ignore[arg-type]  # an iterator of bytes
    )
    assert answer.status_code == 200, answer.text
    completed = await acme.openai.uploads.complete(upload.id, part_ids=[answer.json()["id"]])

    assert completed.file is not None
    assert (await acme.openai.files.content(completed.file.id)).content == b"\r\nab\n"


@pytest.mark.parametrize(
    ("changes", "param", "code", "message"),
    [
        (
            {"purpose": "party"},
            "purpose",
            "invalid_value",
            "Invalid value: 'party'. Supported values are: 'assistants', 'batch', 'fine-tune', "
            "'vision', 'user_data', 'evals', 'adapter'.",
        ),
        (
            {"filename": None},
            "filename",
            "missing_required_parameter",
            "Missing required parameter: 'filename'.",
        ),
        (
            {"bytes": "5"},
            "bytes",
            "invalid_type",
            "Invalid type for 'bytes': expected an integer, but got a string instead.",
        ),
        (
            {"bytes": -1},
            "bytes",
            "integer_below_min_value",
            "Invalid 'bytes': integer below minimum value. Expected a value >= 0, but got -1 "
            "instead.",
        ),
        (
            {"bytes": 60_000_001},
            "bytes",
            "integer_above_max_value",
            "Invalid 'bytes': integer above maximum value. Expected a value <= 60000000 for "
            "purpose 'batch', but got 60000001 instead.",
        ),
        (
            {"bytes": 8_589_934_593, "purpose": "user_data"},
            "bytes",
            "integer_above_max_value",
            "Invalid 'bytes': integer above maximum value. Expected a value <= 8589934592 for "
            "purpose 'user_data', but got 8589934593 instead.",
        ),
        (
            {"filename": "notes.txt"},
            None,
            None,
            "Invalid file format for Batch API. Must be .jsonl",
        ),
        (
            {"filename": "n" * 513},
            "filename",
            "string_above_max_length",
            "Invalid 'filename': the file name is too long. Expected at most 512 characters, but "
            "got 513.",
        ),
        (
            {"expires_after": {"anchor": "created_at", "seconds": 5}},
            "expires_after.seconds",
            "integer_below_min_value",
            "Invalid 'expires_after.seconds': integer below minimum value. Expected a value >= "
            "3600, but got 5 instead.",
        ),
        (
            {"party": 1},
            "party",
            "unknown_parameter",
            "Unknown parameter: 'party'.",
        ),
    ],
)
async def test_a_wrong_field_of_an_upload_is_explained(
    changes: dict[str, Any], param: str | None, code: str | None, message: str, acme: Caller
) -> None:
    params = {name: value for name, value in _params(**changes).items() if value is not None}

    answer = await acme.http.post("/v1/uploads", json=params)

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }


@pytest.mark.parametrize("purpose", ["assistants", "fine-tune", "vision", "user_data", "evals"])
async def test_every_purpose_of_the_sdk_is_taken(purpose: Any, acme: Caller) -> None:
    upload = await acme.openai.uploads.create(
        bytes=8_589_934_592, filename="any.thing", mime_type="text/plain", purpose=purpose
    )
    file = await acme.openai.files.create(file=("any.thing", b"x"), purpose=purpose)

    assert (upload.status, upload.purpose) == ("pending", purpose)
    assert (file.purpose, file.expires_at) == (purpose, None)


async def test_the_expiry_of_the_file_begins_with_the_file(acme: Caller) -> None:
    upload = await acme.openai.uploads.create(
        bytes=1,
        filename="a",
        mime_type="text/plain",
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    part_id = await _add(acme, upload, b"x")

    file = (await acme.openai.uploads.complete(upload.id, part_ids=[part_id])).file

    assert file is not None
    assert file.expires_at == file.created_at + 7200


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"part_ids": ["{0}", "part_x"]}, "part_ids[1]", "has no part 'part_x'"),
        ({"part_ids": ["{other}", "{1}"]}, "part_ids[0]", "has no part '{other}'"),
        ({"part_ids": ["{0}", "{1}", "{0}"]}, "part_ids", "part '{0}' is named 2 times"),
        (
            {"part_ids": ["{0}"]},
            "part_ids",
            "the parts have 4 bytes together, but upload '{upload}' was created with 'bytes' 8",
        ),
        (
            {"part_ids": []},
            "part_ids",
            "the parts have 0 bytes together, but upload '{upload}' was created with 'bytes' 8",
        ),
        (
            {"part_ids": ["{1}", "{0}"], "md5": "41e3014fd3e45553734aa84306176716"},
            "md5",
            "expected '41e3014fd3e45553734aa84306176716', but the parts in this order have "
            "'d79e7126b2d754b86b85ed973d725021'",
        ),
        ({"part_ids": ["{0}", "{1}"], "md5": "so=="}, "md5", "Invalid value for 'md5'"),
        ({}, "part_ids", "Missing required parameter: 'part_ids'."),
        (
            {"part_ids": "{0}"},
            "part_ids",
            "Invalid type for 'part_ids': expected an array, but got a string instead.",
        ),
        (
            {"part_ids": [5]},
            "part_ids[0]",
            "Invalid type for 'part_ids[0]': expected a string, but got an integer instead.",
        ),
    ],
)
async def test_a_wrong_completion_is_explained_and_can_be_put_right(
    change: dict[str, Any], param: str, message: str, acme: Caller, bucket: Storage
) -> None:
    upload, elsewhere = await _begin(acme, bytes=8), await _begin(acme, bytes=4)
    first, second = [await _add(acme, upload, body) for body in (b"rows", b"1234")]
    names = {
        "{0}": first,
        "{1}": second,
        "{other}": await _add(acme, elsewhere, b"rows"),
        "{upload}": upload.id,
    }

    answer = await acme.http.post(
        f"/v1/uploads/{upload.id}/complete", json=json.loads(_named(json.dumps(change), names))
    )

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert _named(message, names) in error["message"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert await bucket.keys(f"files/{acme.tenant}/") == []
    completed = await acme.openai.uploads.complete(
        upload.id,
        part_ids=[first, second],
        md5=hashlib.md5(b"rows1234", usedforsecurity=False).hexdigest().upper(),
    )
    assert completed.file is not None
    assert (await acme.openai.files.content(completed.file.id)).content == b"rows1234"


async def test_a_repeated_completion_gives_the_same_file_and_another_none(acme: Caller) -> None:
    upload = await _begin(acme, bytes=4)
    part_ids = [await _add(acme, upload, body) for body in (b"ro", b"ws")]
    completed = await acme.openai.uploads.complete(upload.id, part_ids=part_ids)

    assert await acme.openai.uploads.complete(upload.id, part_ids=part_ids) == completed
    with pytest.raises(BadRequestError, match="completed with other parts") as refused:
        await acme.openai.uploads.complete(upload.id, part_ids=part_ids[::-1])

    assert refused.value.param == "part_ids"
    assert len((await acme.openai.files.list()).data) == 1


async def test_a_completion_can_be_repeated_after_its_file_was_deleted(acme: Caller) -> None:
    upload = await _begin(acme, bytes=2)
    part_id = await _add(acme, upload, b"ro")
    completed = await acme.openai.uploads.complete(upload.id, part_ids=[part_id])
    assert completed.file is not None
    await acme.openai.files.delete(completed.file.id)

    again = await acme.openai.uploads.complete(upload.id, part_ids=[part_id])

    assert (again.status, again.file) == ("completed", None)


async def test_completions_at_the_same_time_make_one_file(acme: Caller, bucket: Storage) -> None:
    upload = await _begin(acme, bytes=4)
    part_ids = [await _add(acme, upload, body) for body in (b"ro", b"ws")]

    answers = await asyncio.gather(
        *(acme.openai.uploads.complete(upload.id, part_ids=part_ids) for _ in range(8))
    )

    [file] = (await acme.openai.files.list()).data
    assert [answer.file for answer in answers] == [file] * 8
    assert (await acme.openai.files.content(file.id)).content == b"rows"
    assert len(await bucket.keys(f"files/{acme.tenant}/")) == 2


@pytest.mark.parametrize("end", ["completed", "cancelled", "expired"])
async def test_nothing_happens_to_an_upload_that_has_ended(
    end: str, acme: Caller, gateway_state: State, bucket: Storage
) -> None:
    upload = await _begin(acme, bytes=2)
    part_id = await _add(acme, upload, b"ro")
    match end:
        case "completed":
            await acme.openai.uploads.complete(upload.id, part_ids=[part_id])
        case "cancelled":
            await acme.openai.uploads.cancel(upload.id)
        case _:
            record = await gateway_state.uploads.get(acme.tenant, upload.id)
            await gateway_state.uploads.create(record._replace(expires_at=int(time.time())))

    with pytest.raises(BadRequestError, match=f"Cannot add a part to .* '{end}'") as refused:
        await acme.openai.uploads.parts.create(upload.id, data=b"more")
    assert refused.value.param == "upload_id"
    assert refused.value.code == "invalid_value"
    assert len(await bucket.keys(f"uploads/{upload.id}/")) <= 1
    if end != "completed":
        with pytest.raises(BadRequestError, match=f"Cannot complete .* '{end}'"):
            await acme.openai.uploads.complete(upload.id, part_ids=[part_id])
    if end == "cancelled":
        assert (await acme.openai.uploads.cancel(upload.id)).status == "cancelled"
    else:
        with pytest.raises(BadRequestError, match=f"Cannot cancel .* '{end}'"):
            await acme.openai.uploads.cancel(upload.id)


async def test_a_part_that_was_under_way_when_its_upload_ended_leaves_nothing(
    acme: Caller, bucket: Storage
) -> None:
    upload = await _begin(acme, bytes=20_000_000)
    body = _part(b"x" * 20_000_000)
    half_sent, go_on = asyncio.Event(), asyncio.Event()

    async def pieces() -> object:
        yield body[:10_000_000]
        half_sent.set()
        await go_on.wait()
        yield body[10_000_000:]

    sending = asyncio.create_task(
        acme.http.post(
            f"/v1/uploads/{upload.id}/parts",
            headers=MULTIPART,
            content=pieces(),  # type: ignore[arg-type]  # an iterator of bytes
        )
    )
    await half_sent.wait()
    cancelled = await acme.openai.uploads.cancel(upload.id)
    go_on.set()
    answer = await sending

    assert (cancelled.status, cancelled.file) == ("cancelled", None)
    assert answer.status_code == 400
    assert "with status 'cancelled'" in answer.json()["error"]["message"]
    assert await bucket.keys(f"uploads/{upload.id}/") == []


async def test_anothers_upload_is_not_found_by_any_verb(acme: Caller, globex: Caller) -> None:
    upload = await _begin(acme, bytes=2)
    part_id = await _add(acme, upload, b"ro")

    for call in (
        globex.openai.uploads.parts.create(upload.id, data=b"x"),
        globex.openai.uploads.complete(upload.id, part_ids=[part_id]),
        globex.openai.uploads.cancel(upload.id),
    ):
        with pytest.raises(NotFoundError, match=f"No such Upload object: {upload.id}") as refused:
            await call
        assert refused.value.param == "id"

    foreign = await _begin(globex, bytes=2)
    with pytest.raises(BadRequestError, match="has no part"):
        await globex.openai.uploads.complete(foreign.id, part_ids=[part_id])
    completed = await acme.openai.uploads.complete(upload.id, part_ids=[part_id])
    assert completed.file is not None
    with pytest.raises(NotFoundError):
        await globex.openai.uploads.complete(upload.id, part_ids=[part_id])
    with pytest.raises(NotFoundError):
        await globex.openai.files.content(completed.file.id)


@pytest.mark.parametrize("upload_id", ["upload_none", "%00", "..", "a%20b", "%ff", "x" * 2000])
@pytest.mark.parametrize("verb", ["parts", "complete", "cancel"])
async def test_unknown_ids_are_not_found(upload_id: str, verb: str, acme: Caller) -> None:
    body: dict[str, Any] = {
        "complete": {"json": {"part_ids": []}},
        "parts": {"files": {"data": b""}},
    }
    answer = await acme.http.post(f"/v1/uploads/{upload_id}/{verb}", **body.get(verb, {}))

    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_part_over_the_limit_is_refused_and_leaves_nothing(
    is_chunked: bool, acme: Caller, bucket: Storage
) -> None:
    upload = await _begin(acme, bytes=8_000_000_000, purpose="user_data", filename="a")
    start = _part(b"")[: -len(f"\r\n--{BOUNDARY}--\r\n")]
    block, blocks = b"x" * MIB, MAX_PART_BYTES // MIB + 1

    async def pieces() -> object:
        yield start
        for _ in range(blocks):
            yield block

    headers = dict(MULTIPART)
    if not is_chunked:
        headers["content-length"] = str(len(start) + blocks * len(block))
    answer = await acme.http.post(
        f"/v1/uploads/{upload.id}/parts",
        headers=headers,
        content=pieces(),  # type: ignore[arg-type]  # an iterator of bytes
    )

    assert answer.status_code == 400
    error = answer.json()["error"]["message"]
    assert error == f"File is too large. 'data' may have at most {MAX_PART_BYTES} bytes."
    assert await bucket.keys(f"uploads/{upload.id}/") == []


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"files": {"file": b"x"}}, "Missing required parameter: 'data'."),
        ({"content": b"no form"}, "We could not parse your multipart form."),
        ({"headers": MULTIPART, "content": b"--frontier"}, "Missing required parameter: 'data'."),
        ({"files": [("data", b"x"), ("data", b"y")]}, "more than one part 'data'"),
    ],
)
async def test_what_is_no_part_is_refused(
    form: dict[str, Any], message: str, acme: Caller, bucket: Storage
) -> None:
    upload = await _begin(acme, bytes=1)

    answer = await acme.http.post(f"/v1/uploads/{upload.id}/parts", **form)

    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert await bucket.keys(f"uploads/{upload.id}/") == []


async def test_an_upload_does_not_take_parts_without_end(acme: Caller) -> None:
    upload = await _begin(acme, bytes=1, purpose="user_data")
    part = b"x" * (MAX_PART_BYTES // 2)
    first = [await _add(acme, upload, part) for _ in range(2)]

    with pytest.raises(BadRequestError, match="takes no more parts") as refused:
        await _add(acme, upload, part)

    assert len(first) == 2
    assert refused.value.param == "data"


async def test_the_file_of_an_upload_is_a_file_like_any_other(acme: Caller) -> None:
    upload = await acme.openai.uploads.upload_file_chunked(
        file=LINE, filename="in.jsonl", bytes=len(LINE), mime_type="text/jsonl", purpose="batch"
    )
    assert upload.file is not None

    batch = await acme.openai.batches.create(
        input_file_id=upload.file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    listed = [file.id async for file in acme.openai.files.list(purpose="batch")]
    answer = await acme.http.get(f"/v1/files/{upload.file.id}/content")
    await acme.openai.files.delete(upload.file.id)

    assert batch.input_file_id == upload.file.id
    assert listed == [upload.file.id]
    assert answer.headers["content-disposition"] == 'attachment; filename="in.jsonl"'
    with pytest.raises(NotFoundError):
        await acme.openai.files.retrieve(upload.file.id)


async def test_the_record_of_an_uploads_file_lies_beside_its_object(
    acme: Caller, bucket: Storage
) -> None:
    upload = await _begin(acme, bytes=2)
    part_id = await _add(acme, upload, b"ro")
    file = (await acme.openai.uploads.complete(upload.id, part_ids=[part_id])).file
    assert file is not None

    key = f"files/{acme.tenant}/{file.id}"
    assert sorted(await bucket.keys(f"files/{acme.tenant}/")) == [key, f"{key}.json"]
    record = json.loads(await bucket.get(f"{key}.json"))
    assert (record["id"], record["etag"]) == (file.id, (await bucket.stat(key)).etag)


async def test_a_batch_takes_no_file_over_its_limit_wherever_that_came_from(
    acme: Caller, gateway: Gateway, gateway_state: State
) -> None:
    max_bytes = gateway.settings.max_input_bytes
    for size in (max_bytes, max_bytes + 1):
        await gateway_state.files.create(
            FileRecord(
                id=f"file-{acme.tenant}-{size}",
                tenant=acme.tenant,
                bytes=size,
                created_at=1,
                expires_at=None,
                filename="in.jsonl",
                purpose="batch",
                bucket="b",
                key="k",
                etag="e",
            )
        )

    with pytest.raises(BadRequestError, match=f"larger than the {max_bytes} maximum") as refused:
        await acme.openai.batches.create(
            input_file_id=f"file-{acme.tenant}-{max_bytes + 1}",
            endpoint="/v1/embeddings",
            completion_window="24h",
        )
    batch = await acme.openai.batches.create(
        input_file_id=f"file-{acme.tenant}-{max_bytes}",
        endpoint="/v1/embeddings",
        completion_window="24h",
    )

    assert refused.value.param == "input_file_id"
    assert batch.status == "validating"


def _params(**changes: Any) -> dict[str, Any]:
    return {
        "bytes": 5,
        "filename": "in.jsonl",
        "mime_type": "application/jsonl",
        "purpose": "batch",
        **changes,
    }


async def _begin(caller: Caller, **changes: Any) -> Upload:
    return await caller.openai.uploads.create(**_params(**changes))


async def _add(caller: Caller, upload: Upload, data: bytes) -> str:
    return (await caller.openai.uploads.parts.create(upload.id, data=data)).id


def _named(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def _part(body: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="data"; filename="blob"\r\n\r\n'
    return head.encode() + body + f"\r\n--{BOUNDARY}--\r\n".encode()

import asyncio
import json
import time

import httpx
import pytest
from openai import APIStatusError, BadRequestError, NotFoundError

from shared.state import FileRecord, State
from shared.storage import Storage
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway
from tests.repeated_scripts import repeating

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"tiny"}}\n'
BOUNDARY = "frontier"
MULTIPART = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


async def test_raw_bytes_are_a_file_named_upload_that_lasts_thirty_days(acme: Caller) -> None:
    file = await acme.openai.files.create(file=LINE, purpose="batch")

    assert file.id.startswith("file-")
    assert len(file.id) == len("file-") + 22
    assert file.filename == "upload"
    assert (file.object, file.bytes, file.purpose, file.status) == (
        "file",
        len(LINE),
        "batch",
        "processed",
    )
    assert file.expires_at == file.created_at + 30 * 86_400
    assert abs(file.created_at - time.time()) < 60
    assert await acme.openai.files.retrieve(file.id) == file


async def test_every_key_of_a_file_is_sent(acme: Caller) -> None:
    answer = await acme.http.post(
        "/v1/files", files={"file": ("a.txt", b"hello")}, data={"purpose": "user_data"}
    )

    assert answer.status_code == 200
    assert answer.json() == {
        "id": answer.json()["id"],
        "object": "file",
        "bytes": 5,
        "created_at": answer.json()["created_at"],
        "expires_at": None,
        "filename": "a.txt",
        "purpose": "user_data",
        "status": "processed",
        "status_details": None,
    }


async def test_the_expiry_of_the_sdk_is_kept(acme: Caller) -> None:
    file = await acme.openai.files.create(
        file=("in.jsonl", LINE),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )

    assert file.expires_at == file.created_at + 3600


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"},
        {"expires_after.anchor": "created_at", "expires_after.seconds": "7200"},
        {"expires_after": '{"anchor":"created_at","seconds":7200}'},
    ],
)
@pytest.mark.parametrize("file_comes", ["first", "last"])
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_every_spelling_and_order_of_the_form_is_understood(
    fields: dict[str, str],
    file_comes: str,
    is_chunked: bool,
    acme: Caller,
) -> None:
    parts = [_field(name, value) for name, value in {"purpose": "batch", **fields}.items()]
    parts.insert(0 if file_comes == "first" else len(parts), _file(LINE * 3))
    body = _form(*parts)

    async def pieces() -> object:
        for start in range(0, len(body), 50):
            yield body[start : start + 50]

    answer = await acme.http.post(
        "/v1/files",
        headers=MULTIPART,
        content=pieces() if is_chunked else body,  # type: ignore[arg-type]  # an iterator of bytes
    )

    file = answer.json()
    assert answer.status_code == 200, file
    assert file["expires_at"] == file["created_at"] + 7200
    content = await acme.openai.files.content(file["id"])
    assert content.content == LINE * 3


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("bytes=3-", LINE[3:]), ("bytes=2-9", LINE[2:10]), ("bytes=-4", LINE[-4:])],
)
async def test_a_part_of_a_file_can_be_had(asked: str, expected: bytes, acme: Caller) -> None:
    file = await acme.openai.files.create(file=("in.jsonl", LINE), purpose="batch")

    part = await acme.http.get(f"/v1/files/{file.id}/content", headers={"range": asked})
    whole = await acme.http.get(f"/v1/files/{file.id}/content", headers={"range": "bytes=9999-"})

    assert (part.status_code, part.content) == (206, expected)
    assert part.headers["content-range"].endswith(f"/{len(LINE)}")
    assert (whole.status_code, whole.content) == (200, LINE)
    assert whole.headers["accept-ranges"] == "bytes"


async def test_a_download_names_the_file_and_its_length(acme: Caller) -> None:
    file = await acme.openai.files.create(file=("in.jsonl", LINE), purpose="batch")

    answer = await acme.http.get(f"/v1/files/{file.id}/content")

    assert answer.status_code == 200
    assert answer.content == LINE
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == str(len(LINE))
    assert answer.headers["content-disposition"] == 'attachment; filename="in.jsonl"'


@pytest.mark.parametrize("name", ["größe.jsonl", 'a"b\\c.jsonl', "a b.jsonl", "x\r\ny.jsonl"])
async def test_any_file_name_survives(name: str, acme: Caller) -> None:
    file = await acme.openai.files.create(file=(name, LINE), purpose="batch")

    answer = await acme.http.get(f"/v1/files/{file.id}/content")

    assert answer.content == LINE
    assert answer.headers["content-disposition"].startswith('attachment; filename="')
    assert file.filename.endswith(".jsonl")


async def test_fifty_megabytes_come_back_as_they_went(acme: Caller) -> None:
    body = b"".join(
        b'{"custom_id":"%08d","text":"--\r\n--frontier"}\n' % n for n in range(1_100_000)
    )
    body = body[:50_000_000]

    file = await acme.openai.files.create(file=("big.jsonl", body), purpose="batch")

    assert file.bytes == len(body)
    content = await acme.openai.files.content(file.id)
    assert content.content == body


async def test_an_empty_file_is_stored_and_judged_later(acme: Caller) -> None:
    file = await acme.openai.files.create(file=b"", purpose="batch")

    assert file.bytes == 0
    assert (await acme.openai.files.content(file.id)).content == b""


async def test_the_record_lies_beside_the_object(acme: Caller, bucket: Storage) -> None:
    file = await acme.openai.files.create(file=LINE, purpose="batch")

    key = f"files/{acme.tenant}/{file.id}"
    assert sorted(await bucket.keys(f"files/{acme.tenant}/")) == [key, f"{key}.json"]
    record = json.loads(await bucket.get(f"{key}.json"))
    assert record["id"] == file.id
    assert record["etag"] == (await bucket.stat(key)).etag


@pytest.mark.parametrize(
    ("name", "code"), [("notes.txt", 400), ("rows.json", 400), ("a", 200), ("A.JSONL", 200)]
)
async def test_batch_inputs_end_in_jsonl_or_in_nothing(
    name: str, code: int, acme: Caller, bucket: Storage
) -> None:
    answer = await acme.http.post(
        "/v1/files", files={"file": (name, LINE)}, data={"purpose": "batch"}
    )

    assert answer.status_code == code
    if code == 400:
        assert answer.json()["error"] == {
            "message": "Invalid file format for Batch API. Must be .jsonl",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
        assert await bucket.keys(f"files/{acme.tenant}/") == []


@pytest.mark.parametrize(
    ("parts", "param", "code", "message"),
    [
        (
            [("purpose", "batch")],
            "file",
            "missing_required_parameter",
            "Missing required parameter: 'file'.",
        ),
        ([], "file", "missing_required_parameter", "Missing required parameter: 'file'."),
        (
            [None],
            "purpose",
            "missing_required_parameter",
            "Missing required parameter: 'purpose'.",
        ),
        (
            [None, ("purpose", "party")],
            "purpose",
            "invalid_value",
            "Invalid value: 'party'. Supported values are: 'assistants', 'batch', 'fine-tune', "
            "'vision', 'user_data', 'evals', 'adapter'.",
        ),
        (
            [None, ("purpose", "batch"), ("expires_after[anchor]", "created_at")],
            "expires_after.seconds",
            "missing_required_parameter",
            "Missing required parameter: 'expires_after.seconds'.",
        ),
        (
            [
                ("purpose", "batch"),
                None,
                ("expires_after[anchor]", "created_at"),
                ("expires_after[seconds]", "5"),
            ],
            "expires_after.seconds",
            "integer_below_min_value",
            "Invalid 'expires_after.seconds': integer below minimum value. Expected a value >= "
            "3600, but got 5 instead.",
        ),
        (
            [None, ("purpose", "batch"), ("expires_after", '{"anchor":"today","seconds":3600}')],
            "expires_after.anchor",
            "invalid_value",
            "Invalid value: 'today'. Supported values are: 'created_at'.",
        ),
    ],
)
async def test_a_wrong_form_is_explained_and_leaves_nothing(
    parts: list[tuple[str, str] | None],
    param: str,
    code: str,
    message: str,
    acme: Caller,
    bucket: Storage,
) -> None:
    body = _form(*(_file(LINE * 1000) if part is None else _field(*part) for part in parts))

    answer = await acme.http.post("/v1/files", headers=MULTIPART, content=body)

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }
    assert await bucket.keys(f"files/{acme.tenant}/") == []


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "application/json"}, b"{}"),
        ({"content-type": "multipart/form-data"}, b"x"),
        (MULTIPART, b"no form at all"),
        (MULTIPART, b"--frontier\r\ncontent-disposition: form-data; name=\xff\r\n\r\nx"),
        (MULTIPART, b'--frontier\r\ncontent-disposition: form-data; name="file"\r\n\r\nhalf a fi'),
    ],
)
async def test_what_is_no_form_is_refused(
    headers: dict[str, str], body: bytes, acme: Caller
) -> None:
    answer = await acme.http.post("/v1/files", headers=headers, content=body)

    assert answer.status_code == 400
    assert "could not parse your multipart form" in answer.json()["error"]["message"]


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_file_that_is_too_large_is_refused_and_leaves_nothing(
    is_chunked: bool,
    acme: Caller,
    gateway: Gateway,
    bucket: Storage,
) -> None:
    block = b"x" * 1_000_000
    start = _form(_field("purpose", "batch"), _file(b""))[: -len(f"\r\n--{BOUNDARY}--\r\n")]
    blocks = gateway.settings.max_upload_bytes // len(block) + 1

    async def pieces() -> object:
        yield start
        for _ in range(blocks):
            yield block

    headers = dict(MULTIPART)
    if not is_chunked:
        headers["content-length"] = str(len(start) + blocks * len(block))
    answer = await acme.http.post(
        "/v1/files",
        headers=headers,
        content=pieces(),  # type: ignore[arg-type]  # an iterator of bytes
    )

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("File is too large.")
    assert answer.json()["error"]["code"] is None
    assert await bucket.keys(f"files/{acme.tenant}/") == []


async def test_two_files_in_one_form_are_refused(acme: Caller) -> None:
    body = _form(_field("purpose", "batch"), _file(LINE), _file(LINE))

    answer = await acme.http.post("/v1/files", headers=MULTIPART, content=body)

    assert answer.status_code == 400
    assert "more than one part" in answer.json()["error"]["message"]


async def test_a_form_full_of_other_things_is_refused(acme: Caller) -> None:
    body = _form(_field("purpose", "batch"), _field("junk", "x" * 1_000_000), _file(LINE))

    answer = await acme.http.post("/v1/files", headers=MULTIPART, content=body)

    assert answer.status_code == 413


async def test_a_client_that_hangs_up_leaves_nothing(
    acme: Caller, gateway: Gateway, bucket: Storage
) -> None:
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"POST /v1/files HTTP/1.1\r\nhost: {url.host}\r\nauthorization: Bearer {acme.key}\r\n"
        f"content-type: {MULTIPART['content-type']}\r\ncontent-length: 50000000\r\n\r\n".encode()
    )
    writer.write(_form(_field("purpose", "batch"), _file(b"x" * 20_000_000)))
    await writer.drain()

    writer.transport.abort()
    del reader

    async def nothing_is_left() -> bool:
        return await bucket.keys(f"files/{acme.tenant}/") == []

    # Any later call is served after the broken one has been noticed.
    await acme.openai.files.list()
    await eventually(nothing_is_left)
    assert (await acme.openai.files.list()).data == []


async def test_pages_follow_each_other_in_both_orders(acme: Caller) -> None:
    made = [(await acme.openai.files.create(file=LINE, purpose="batch")).id for _ in range(5)]

    newest_first = [file.id async for file in acme.openai.files.list(limit=2)]
    oldest_first = [file.id async for file in acme.openai.files.list(limit=2, order="asc")]
    page = (await acme.http.get("/v1/files", params={"limit": 2})).json()

    assert oldest_first == made
    assert newest_first == made[::-1]
    assert (page["object"], page["has_more"]) == ("list", True)
    assert (page["first_id"], page["last_id"]) == (made[4], made[3])


async def test_a_purpose_picks_its_files_only(acme: Caller) -> None:
    await acme.openai.files.create(file=LINE, purpose="batch")
    other = await acme.openai.files.create(file=LINE, purpose="user_data")

    assert [file.id async for file in acme.openai.files.list(purpose="user_data")] == [other.id]


@pytest.mark.parametrize("query", ["limit=0", "after=after", "limit=10000&order=asc"])
async def test_odd_but_legal_listings_are_answered(query: str, acme: Caller) -> None:
    answer = await acme.http.get(f"/v1/files?{query}")

    assert answer.status_code == 200
    assert answer.json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("query", "message", "code"),
    [
        (
            "limit=10001",
            "Invalid 'limit': integer above maximum value. Expected a value <= 10000, but got "
            "10001 instead.",
            "integer_above_max_value",
        ),
        (
            "limit=-1",
            "Invalid 'limit': integer below minimum value. Expected a value >= 0, but got -1 "
            "instead.",
            "integer_below_min_value",
        ),
        (
            "limit=x",
            "Invalid type for 'limit': expected an integer, but got a string instead.",
            "invalid_type",
        ),
        (
            "order=up",
            "Invalid value: 'up'. Supported values are: 'asc', 'desc'.",
            "invalid_value",
        ),
    ],
)
async def test_illegal_listings_are_explained(
    query: str, message: str, code: str, acme: Caller
) -> None:
    answer = await acme.http.get(f"/v1/files?{query}")

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["message"], error["code"]) == (message, code)
    assert error["param"] == query.partition("=")[0]


async def test_a_deletion_that_redis_does_twice_is_one(acme: Caller) -> None:
    file = await acme.openai.files.create(file=LINE, purpose="batch")

    with repeating("delete_file"):
        deleted = await acme.openai.files.delete(file.id)

    assert deleted.deleted
    with pytest.raises(NotFoundError):
        await acme.openai.files.delete(file.id)


async def test_a_deleted_file_is_gone_for_every_call(acme: Caller, bucket: Storage) -> None:
    file = await acme.openai.files.create(file=LINE, purpose="batch")

    deleted = await acme.openai.files.delete(file.id)

    assert (deleted.id, deleted.object, deleted.deleted) == (file.id, "file", True)
    for call in (
        acme.openai.files.delete,
        acme.openai.files.retrieve,
        acme.openai.files.content,
    ):
        with pytest.raises(NotFoundError, match=f"No such File object: {file.id}") as refused:
            await call(file.id)
        assert (refused.value.param, refused.value.code) == ("id", None)
    assert [file async for file in acme.openai.files.list()] == []
    assert f"files/{acme.tenant}/{file.id}.json" not in await bucket.keys(f"files/{acme.tenant}/")


async def test_anothers_file_is_not_found_by_any_verb(acme: Caller, globex: Caller) -> None:
    file = await acme.openai.files.create(file=LINE, purpose="batch")

    for call in (
        globex.openai.files.retrieve,
        globex.openai.files.content,
        globex.openai.files.delete,
    ):
        with pytest.raises(NotFoundError):
            await call(file.id)

    assert [file async for file in globex.openai.files.list()] == []
    assert (await globex.openai.files.list(after=file.id)).data == []
    assert (await acme.openai.files.retrieve(file.id)).id == file.id


async def test_an_expired_file_is_gone(acme: Caller, gateway_state: State) -> None:
    await gateway_state.files.create(
        FileRecord(
            id=f"file-{acme.tenant}",
            tenant=acme.tenant,
            bytes=1,
            created_at=1,
            expires_at=2,
            filename="old.jsonl",
            purpose="batch",
            bucket="b",
            key="k",
            etag="e",
        )
    )

    for call in (acme.openai.files.retrieve, acme.openai.files.content, acme.openai.files.delete):
        with pytest.raises(NotFoundError):
            await call(f"file-{acme.tenant}")
    assert (await acme.openai.files.list()).data == []
    with pytest.raises(BadRequestError, match="Cannot find file"):
        await acme.openai.batches.create(
            input_file_id=f"file-{acme.tenant}",
            endpoint="/v1/embeddings",
            completion_window="24h",
        )


@pytest.mark.parametrize("file_id", ["file_id", "%00", "..", "a%20b", "%ff", "x" * 2000])
async def test_malformed_ids_are_not_found(file_id: str, acme: Caller) -> None:
    answer = await acme.http.get(f"/v1/files/{file_id}/content")

    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_the_sdk_sees_the_request_id_of_results_and_errors(acme: Caller) -> None:
    file = await acme.openai.files.create(file=LINE, purpose="batch")
    with pytest.raises(APIStatusError) as refused:
        await acme.openai.files.retrieve("file-none")

    for request_id in (file._request_id, refused.value.request_id):  # noqa: SLF001  # the SDK's name for it
        assert request_id is not None
        assert request_id.startswith("req_")
        assert len(request_id) == len("req_") + 32


def _field(name: str, value: str) -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()


def _file(body: bytes) -> bytes:
    head = 'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n'
    return f"{head}Content-Type: application/jsonl\r\n\r\n".encode() + body


def _form(*parts: bytes) -> bytes:
    line = f"--{BOUNDARY}\r\n".encode()
    return b"".join(line + part + b"\r\n" for part in parts) + f"--{BOUNDARY}--\r\n".encode()

"""OpenAI's contract for files."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import BadRequestError, NotFoundError

from tests.contract.conftest import Caller, ServiceYard, batch_params, custom_ids, rows
from tests.contract.engine import WAIT

BOUNDARY = "frontier"
SPELLINGS = {
    "brackets": [("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "7200")],
    "dots": [("expires_after.anchor", "created_at"), ("expires_after.seconds", "7200")],
    "one JSON part": [("expires_after", '{"anchor":"created_at","seconds":7200}')],
}
THIRTY_DAYS = 30 * 86_400


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("file_comes", ["first", "last"])
@pytest.mark.parametrize("length", ["chunked", "given"])
def test_any_form_is_understood(spelling: str, file_comes: str, length: str, acme: Caller) -> None:
    body = rows("hello", "world")
    parts = [_field(name, text) for name, text in [("purpose", "batch"), *SPELLINGS[spelling]]]
    parts.insert(0 if file_comes == "first" else len(parts), _file("in.jsonl", body))
    form = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()

    answer = acme.http.post(
        "/v1/files",
        headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"},
        content=_chunks(form) if length == "chunked" else form,
    )

    file = answer.json()
    assert answer.status_code == 200, file
    assert file["expires_at"] - file["created_at"] == 7200
    assert acme.openai.files.content(file["id"]).content == body


def test_a_file_is_processed_and_usable_in_the_answer_to_its_upload(acme: Caller) -> None:
    for _ in range(10):
        file = acme.openai.files.create(file=("in.jsonl", rows("hello")), purpose="batch")
        created = acme.http.post("/v1/batches", json=batch_params(file.id))

        assert file.status == "processed"
        assert created.status_code == 200, created.text


def test_a_file_named_upload_is_taken_and_a_text_file_is_not(acme: Caller) -> None:
    bare = acme.openai.files.create(file=rows("hello"), purpose="batch")

    with pytest.raises(
        BadRequestError, match=r"Invalid file format for Batch API\. Must be \.jsonl"
    ):
        acme.openai.files.create(file=("notes.txt", rows("hello")), purpose="batch")

    assert bare.filename == "upload"
    assert acme.http.post("/v1/batches", json=batch_params(bare.id)).status_code == 200


def test_inputs_last_thirty_days_and_other_files_for_ever(acme: Caller) -> None:
    kept: dict[str, int | None] = {}
    for purpose in ("batch", "user_data"):
        answer = acme.http.post(
            "/v1/files", files={"file": ("in.jsonl", b"{}")}, data={"purpose": purpose}
        ).json()
        again = acme.http.get(f"/v1/files/{answer['id']}").json()
        assert again == answer
        at = answer["expires_at"]
        kept[purpose] = None if at is None else at - answer["created_at"]

    assert kept == {"batch": THIRTY_DAYS, "user_data": None}


def test_a_deleted_file_is_gone_for_every_verb(acme: Caller) -> None:
    file_id = acme.upload(rows("hello"))

    deleted = acme.http.delete(f"/v1/files/{file_id}")

    assert deleted.json() == {"id": file_id, "object": "file", "deleted": True}
    for call in (acme.openai.files.delete, acme.openai.files.content, acme.openai.files.retrieve):
        with pytest.raises(NotFoundError, match=f"No such File object: {file_id}"):
            call(file_id)
    assert acme.http.post("/v1/batches", json=batch_params(file_id)).status_code == 400


def test_the_input_of_a_running_batch_may_be_deleted(acme: Caller, yard: ServiceYard) -> None:
    batch = acme.create(rows("one", WAIT, "three"))
    acme.until(batch["id"], "in_progress")

    acme.openai.files.delete(batch["input_file_id"])
    yard.engine.release(batch["id"])
    ended = acme.until(batch["id"], "completed", "failed")

    assert ended["status"] == "completed"
    assert [one["custom_id"] for one in acme.lines(ended["output_file_id"])] == custom_ids(3)


def test_the_input_may_be_deleted_before_it_was_read(acme: Caller) -> None:
    batch = acme.create(rows("one"))

    acme.openai.files.delete(batch["input_file_id"])

    assert acme.until(batch["id"], "completed", "failed")["status"] == "completed"


def test_content_is_named_bytes_that_end_in_a_line_feed(acme: Caller) -> None:
    batch = acme.run(rows("hello"))

    answer = acme.http.get(f"/v1/files/{batch['output_file_id']}/content")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    name = f"{batch['id']}_output.jsonl"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.content.endswith(b"}\n")
    assert answer.content.isascii()


def test_a_large_file_comes_and_goes_in_constant_memory(acme: Caller, yard: ServiceYard) -> None:
    size, block = 150_000_000, b"x" * 1_000_000
    form = itertools.chain(
        [_field("purpose", "user_data"), _file("big.bin", b"")[: -len(b"\r\n")]],
        itertools.repeat(block, size // len(block)),
        [f"\r\n--{BOUNDARY}--\r\n".encode()],
    )
    before = _most_memory(yard)

    file = acme.http.post(
        "/v1/files",
        headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"},
        content=form,
    ).json()
    got = 0
    with acme.http.stream("GET", f"/v1/files/{file['id']}/content") as answer:
        for chunk in answer.iter_bytes():
            got += len(chunk)

    assert file["bytes"] == got == size
    assert _most_memory(yard) - before < 100_000_000


def _most_memory(yard: ServiceYard) -> int:
    """The gateway's peak memory in bytes."""
    status = Path(f"/proc/{yard.gateway.child.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def _field(name: str, text: str) -> bytes:
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'
    return f"{head}{text}\r\n".encode()


def _file(name: str, body: bytes) -> bytes:
    head = (
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    )
    return head.encode() + body + b"\r\n"


def _chunks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 50):
        yield body[start : start + 50]


def test_the_sdk_streams_it(acme: Caller) -> None:
    batch = acme.run(rows("one", "two", "three"))
    streaming = acme.openai.files.with_streaming_response

    with streaming.content(batch["output_file_id"]) as answer:
        lines = list(answer.iter_lines())

    assert len(lines) == 3
    assert httpx.codes.OK == answer.status_code

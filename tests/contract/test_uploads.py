"""OpenAI's contract for uploads: large files in parts."""

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import BadRequestError
from openai.types import Upload

from tests.contract.conftest import Caller, rows


def test_parts_in_any_order_make_the_file_that_the_completion_names(acme: Caller) -> None:
    body = rows("one", "two", "three")
    # S3 requires 5 MiB for all parts but the last; a client's parts may be smaller.
    chunks = [body[start : start + 100] for start in range(0, len(body), 100)]
    upload = _begin(acme, len(body))
    with ThreadPoolExecutor(8) as pool:
        parts = list(
            pool.map(
                lambda chunk: acme.openai.uploads.parts.create(upload.id, data=chunk),
                reversed(chunks),
            )
        )

    ended = acme.openai.uploads.complete(
        upload.id,
        part_ids=[part.id for part in reversed(parts)],
        md5=hashlib.md5(body, usedforsecurity=False).hexdigest(),
    )

    assert (ended.status, ended.id) == ("completed", upload.id)
    assert ended.file is not None
    assert (ended.file.bytes, ended.file.filename) == (len(body), "in.jsonl")
    assert acme.openai.files.content(ended.file.id).content == body
    assert {part.upload_id for part in parts} == {upload.id}
    batch = acme.openai.batches.create(
        input_file_id=ended.file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert acme.until(batch.id, "completed", "failed")["status"] == "completed"


def test_the_helper_of_the_sdk_uploads_a_file(acme: Caller) -> None:
    body = rows(*["hello"] * 100)

    ended = acme.openai.uploads.upload_file_chunked(
        file=body, filename="in.jsonl", bytes=len(body), mime_type="text/jsonl", purpose="batch"
    )

    assert ended.file is not None
    assert acme.openai.files.content(ended.file.id).content == body


def test_an_upload_lives_for_an_hour(acme: Caller) -> None:
    upload = _begin(acme, 10)

    assert upload.id.startswith("upload_")
    assert (upload.object, upload.status, upload.file) == ("upload", "pending", None)
    assert upload.expires_at - upload.created_at == 3600


def test_bytes_and_md5_are_checked(acme: Caller) -> None:
    upload = _begin(acme, 10)
    part = acme.openai.uploads.parts.create(upload.id, data=io.BytesIO(b"123456789"))

    with pytest.raises(BadRequestError):
        acme.openai.uploads.complete(upload.id, part_ids=[part.id])
    last = acme.openai.uploads.parts.create(upload.id, data=io.BytesIO(b"0"))
    with pytest.raises(BadRequestError):
        acme.openai.uploads.complete(upload.id, part_ids=[part.id, last.id], md5="0" * 32)

    assert acme.openai.files.list().data == []


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_nothing_is_added_after_the_end(end: str, acme: Caller) -> None:
    upload = _begin(acme, 1)
    part = acme.openai.uploads.parts.create(upload.id, data=b"x")
    if end == "complete":
        acme.openai.uploads.complete(upload.id, part_ids=[part.id])
    else:
        assert acme.openai.uploads.cancel(upload.id).status == "cancelled"

    with pytest.raises(BadRequestError):
        acme.openai.uploads.parts.create(upload.id, data=b"y")


def _begin(caller: Caller, size: int) -> Upload:
    return caller.openai.uploads.create(
        bytes=size, filename="in.jsonl", mime_type="application/jsonl", purpose="batch"
    )

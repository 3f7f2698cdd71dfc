"""The whole life of batches, by the official SDK alone: run as a program, under any version of it.

Knows the gateway by OPENAI_BASE_URL and OPENAI_API_KEY, as the SDK does, and prints its version.
Takes the model's name, and one whose name has a slash.
"""

import asyncio
import json
import sys
import time
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

MODEL, SLASHED = sys.argv[1:]
FINAL = {"completed", "failed", "expired", "cancelled"}
CHAT: Any = "/v1/chat/completions"


def line(custom_id: str, says: str, model: str = MODEL) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": says}]}
    request = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(request).encode() + b"\n"


def main() -> None:
    with OpenAI() as client:
        models(client)
        file = upload(client)
        finished = run(client, file.id)
        contents(client, finished)
        paging(client, file.id)
        cancel(client)
        delete(client, file.id)
        errors(client, finished)
    asyncio.run(awaited())
    print(openai.__version__)  # noqa: T201  # it is the result


def models(client: OpenAI) -> None:
    listed = [model.id for model in client.models.list()]
    assert {MODEL, SLASHED} <= set(listed), listed
    assert client.models.retrieve(SLASHED).id == SLASHED


def upload(client: OpenAI) -> Any:
    rows = line("good", "hello") + line("bad", "refuse this")
    file = client.files.create(
        file=("in.jsonl", rows),
        purpose="batch",
        extra_body={"expires_after": {"anchor": "created_at", "seconds": 3600}},
    )
    assert (file.object, file.purpose, file.bytes) == ("file", "batch", len(rows))
    assert file.status == "processed"
    assert file.expires_at == file.created_at + 3600
    assert client.files.wait_for_processing(file.id) == client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == rows
    return file


def run(client: OpenAI, file_id: str) -> Any:
    batch = client.batches.create(
        input_file_id=file_id,
        endpoint=CHAT,
        completion_window="24h",
        metadata={"run": "nightly"},
    )
    assert batch.status == "validating"
    deadline = time.monotonic() + 30
    while batch.status not in FINAL:
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch.errors
    assert batch.metadata == {"run": "nightly"}
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (2, 1, 1)
    return batch


def contents(client: OpenAI, batch: Any) -> None:
    whole = client.files.content(batch.output_file_id)
    (result,) = [json.loads(text) for text in whole.text.splitlines()]
    assert result["custom_id"] == "good"
    assert result["response"]["body"]["choices"][0]["message"]["content"] == "HELLO"
    with client.files.with_streaming_response.content(batch.error_file_id) as streamed:
        (refused,) = [json.loads(text) for text in streamed.iter_lines()]
    assert (refused["custom_id"], refused["error"]) == ("bad", None)
    assert refused["response"]["status_code"] == 400


def paging(client: OpenAI, file_id: str) -> None:
    for _ in range(4):
        client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    first = client.batches.list(limit=2)
    assert (len(first.data), first.has_more) == (2, True)
    everything = [batch.id for batch in client.batches.list(limit=2)]
    assert len(everything) == len(set(everything)) == 5
    assert [batch.id for batch in client.batches.list()] == everything
    inputs = [file.id for file in client.files.list(purpose="batch", limit=1, order="asc")]
    assert inputs == [file_id]


def cancel(client: OpenAI) -> None:
    file = client.files.create(file=line("slow", "wait for it"), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    for _ in range(2):
        # It may have ended by the time of the answer.
        assert client.batches.cancel(batch.id).status in {"cancelling", "cancelled"}


def delete(client: OpenAI, file_id: str) -> None:
    deleted = client.files.delete(file_id)
    assert (deleted.id, deleted.object, deleted.deleted) == (file_id, "file", True)


def errors(client: OpenAI, finished: Any) -> None:
    create = client.batches.create
    bad: Any = {"input_file_id": "file-none", "endpoint": CHAT, "completion_window": "24h"}
    assert expect(openai.BadRequestError, lambda: create(**bad)).param == "file_id"
    window = expect(openai.BadRequestError, lambda: create(**{**bad, "completion_window": "1h"}))
    assert (window.param, window.code) == ("completion_window", "invalid_value")
    assert "completion_window" in str(window) or "'24h'" in str(window)
    missing = expect(openai.NotFoundError, lambda: client.files.retrieve(finished.input_file_id))
    assert missing.request_id is not None and missing.request_id.startswith("req_")
    expect(openai.NotFoundError, lambda: client.batches.retrieve("batch_none"))
    assert expect(openai.NotFoundError, lambda: client.models.retrieve("a/b")).code == (
        "model_not_found"
    )
    conflict = expect(openai.ConflictError, lambda: client.batches.cancel(finished.id))
    # Tried once, although the SDK repeats conflicts by itself.
    assert conflict.response.request.headers["x-stainless-retry-count"] == "0"
    stranger = client.with_options(api_key="sk-wrong-key-0123456789")
    assert expect(openai.AuthenticationError, stranger.models.list).code == "invalid_api_key"


def expect(kind: Any, call: Any) -> Any:
    try:
        call()
    except openai.APIError as error:
        caught = error
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert type(caught) is kind, caught
    return caught


async def awaited() -> None:
    """The asynchronous client speaks the same."""
    async with AsyncOpenAI() as client:
        file = await client.files.create(file=line("a", "hello"), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        listed = [one.id async for one in client.batches.list(limit=1)]
        assert batch.id in listed
        content = await client.files.content(file.id)
        assert json.loads(content.text)["custom_id"] == "a"


main()

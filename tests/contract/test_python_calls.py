"""`AsyncBatchClient` against a real gateway and dispatcher: OpenAI's SDK, answered by batches."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from batchyard import AsyncBatchClient, InvalidInputError
from shared.tasks import end
from tests.contract.conftest import EMBEDDER, MODEL, OTHER_MODEL, Caller
from tests.contract.engine import REFUSE, WAIT
from tests.contract.user_commands import Command, running_batch
from tests.eventually import eventually

Make = Callable[..., AsyncBatchClient]


class Verdict(BaseModel):
    LABEL: str


@pytest.fixture
async def make(acme: Caller) -> AsyncIterator[Make]:
    """Makes clients, which are closed at the end."""
    async with AsyncExitStack() as stack:
        made: list[AsyncBatchClient] = []

        def one(**options: Any) -> AsyncBatchClient:
            url = f"{acme.yard.url}/v1"
            client = AsyncBatchClient(base_url=url, api_key=acme.key, **options)
            made.append(client)
            return client

        yield one
        for client in made:
            if not client.is_closed():
                await stack.enter_async_context(client)


async def _chat(client: AsyncBatchClient, says: str, **changes: Any) -> str | None:
    answer = await client.chat.completions.create(
        **{"model": MODEL, "messages": [{"role": "user", "content": says}], **changes}
    )
    content: str | None = answer.choices[0].message.content
    return content


def _batches(caller: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caller.http.get("/v1/batches").json()["data"]
    return found


async def test_calls_of_a_moment_are_one_batch_of_each_model_and_endpoint(
    acme: Caller, make: Make
) -> None:
    # On a busy machine, calls take long to be made.
    client = make(collect_seconds=5.0)

    chats = asyncio.gather(*(_chat(client, f"question {n}") for n in range(20)))
    other = _chat(client, "another", model=OTHER_MODEL)
    vector = client.embeddings.create(model=EMBEDDER, input="text")
    text = client.completions.create(model=MODEL, prompt="say")
    said = client.responses.create(model=MODEL, input="answer")
    answers, alone, vectors, written, response = await asyncio.gather(
        chats, other, vector, text, said
    )

    assert answers == [f"QUESTION {n}" for n in range(20)]
    assert alone == "ANOTHER"
    assert vectors.data[0].embedding == [0.5, -0.5]
    assert written.choices[0].text == "SAY"
    assert response.output_text == "ANSWER"
    assert isinstance(response, openai.types.responses.Response)
    assert sorted(one["request_counts"]["total"] for one in _batches(acme)) == [1, 1, 1, 1, 20]


async def test_a_full_batch_goes_at_once(acme: Caller, make: Make) -> None:
    client = make(max_calls=3, collect_seconds=3600.0)

    answers = await asyncio.gather(*(_chat(client, f"q{n}") for n in range(6)))

    assert answers == [f"Q{n}" for n in range(6)]
    assert [one["request_counts"]["total"] for one in _batches(acme)] == [3, 3]


async def test_a_failed_request_is_the_sdks_own_exception(make: Make) -> None:
    client = make()

    good, bad = await asyncio.gather(
        _chat(client, "ok"), _chat(client, REFUSE), return_exceptions=True
    )

    assert good == "OK"
    assert isinstance(bad, openai.BadRequestError)
    assert bad.code == "context_length_exceeded"


async def test_a_call_that_the_gateway_refuses_keeps_no_other_from_its_answer(make: Make) -> None:
    client = make()

    good, bad = await asyncio.gather(
        _chat(client, "ok"),
        client.post("/chat/completions", cast_to=object, body={"model": MODEL}),
        return_exceptions=True,
    )
    with pytest.raises(openai.BadRequestError, match="nobody"):
        await _chat(client, "hello", model="nobody")

    assert good == "OK"
    assert isinstance(bad, openai.BadRequestError)
    assert "Messages parameter is required" in bad.message


async def test_a_wrong_key_is_an_authentication_error(acme: Caller) -> None:
    async with AsyncBatchClient(base_url=f"{acme.yard.url}/v1", api_key="sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await _chat(client, "hello")


async def test_answers_come_one_by_one_and_a_cancelled_call_hinders_none(
    acme: Caller, make: Make
) -> None:
    client = make(max_calls=5, collect_seconds=3600.0)
    others = [asyncio.create_task(_chat(client, f"q{n}")) for n in range(4)]
    waiting = asyncio.create_task(_chat(client, WAIT))

    # One may share its slice.
    await eventually(lambda: sum(task.done() for task in others) >= 3)
    [batch] = _batches(acme)
    acme.made.append(batch["id"])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert batch["status"] == "in_progress"
    acme.yard.engine.release(batch["id"])
    assert await asyncio.gather(*others) == ["Q0", "Q1", "Q2", "Q3"]


async def test_a_batch_for_which_nobody_waits_is_cancelled(acme: Caller, make: Make) -> None:
    client = make()
    waiting = [asyncio.create_task(_chat(client, WAIT)) for _ in range(2)]
    await eventually(lambda: any(one["status"] == "in_progress" for one in _batches(acme)))

    await end(*waiting)

    await eventually(lambda: _batches(acme)[0]["status"] == "cancelled")


async def test_closing_sends_what_was_collected_and_waits_for_it(make: Make) -> None:
    async with make(collect_seconds=3600.0) as client:
        task = asyncio.create_task(_chat(client, "late"))
        await eventually(lambda: client.waiting == 1)

    assert await task == "LATE"


async def test_copies_raw_answers_and_parsed_ones_are_the_sdks(make: Make) -> None:
    client = make()
    said = [{"role": "user", "content": '{"label": "yes"}'}]

    copied, raw, parsed = await asyncio.gather(
        _chat(client.with_options(timeout=5), "copy"),
        client.chat.completions.with_raw_response.create(model=MODEL, messages=said),  # type: ignore[arg-type]  # the SDK's own types of messages
        client.chat.completions.parse(model=MODEL, messages=said, response_format=Verdict),  # type: ignore[arg-type]  # as above
    )

    assert copied == "COPY"
    assert raw.status_code == 200
    assert parsed.choices[0].message.parsed == Verdict(LABEL="YES")


async def test_other_calls_go_to_the_gateway(acme: Caller, make: Make) -> None:
    client = make()

    models = {model.id async for model in client.models.list()}
    with pytest.raises(InvalidInputError, match="http_client"):
        AsyncBatchClient(http_client=object(), api_key="sk-x", base_url=acme.yard.url)

    assert MODEL in models


async def test_a_run_with_a_name_takes_up_its_answers(acme: Caller, make: Make) -> None:
    says = ["a", "b", "b", REFUSE]
    async with make(run="night", max_calls=4, collect_seconds=3600.0) as first:
        before = await asyncio.gather(*(_chat(first, one) for one in says), return_exceptions=True)
    async with make(run="night", max_calls=2, collect_seconds=3600.0) as second:
        after = await asyncio.gather(
            *(_chat(second, one) for one in [*says, "c"]), return_exceptions=True
        )
    async with make(run="day", max_calls=1) as other:
        await _chat(other, "a")

    assert before[:3] == after[:3] == ["A", "B", "B"]
    assert after[4] == "C"
    # What failed is asked again, beside what is new.
    assert isinstance(after[3], openai.BadRequestError)
    totals = [one["request_counts"]["total"] for one in reversed(_batches(acme))]
    assert totals == [4, 2, 1]


def test_a_process_that_was_killed_takes_up_what_still_runs(acme: Caller, tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from batchyard import AsyncBatchClient

async def main():
    async with AsyncBatchClient(run="night", max_calls=3, collect_seconds=3600) as client:
        calls = [client.chat.completions.create(model="{MODEL}",
                 messages=[{{"role": "user", "content": one}}]) for one in ("a", "c", {WAIT!r})]
        print([one.choices[0].message.content for one in await asyncio.gather(*calls)])

asyncio.run(main())
"""
    command = [sys.executable, "-W", "error", "-c", program]
    environment = Command(acme, tmp_path).environment()
    killed = subprocess.Popen(command, env=environment)
    batch = running_batch(acme, done=1)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()

    acme.yard.engine.release(batch["id"])
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"['A', 'C', '{WAIT.upper()}']\n"
    assert len(_batches(acme)) == 1

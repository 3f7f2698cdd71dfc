"""What a bare engine measures when it is asked to. Times in seconds, those of calls in ms."""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import rows as rows_of
from benchmarks.bare import Bare


class _Row(NamedTuple):
    text: str
    tokens: int
    #: Whether the text is the whole prompt.
    is_plain: bool = False


async def texts(bare: Bare, rows: int, tokens: int) -> dict[str, Any]:
    """So many of the texts that all benchmarks use, as texts."""
    began = time.perf_counter()
    await asyncio.gather(*(bare(text, tokens) for text in rows_of.texts(rows)))
    return {"seconds": time.perf_counter() - began}


async def file(bare: Bare, path: str, *, as_text: bool = False) -> dict[str, Any]:
    """The rows of a batch's input in the order of their coming.

    Their tokens are made before the time begins, unless they are given as texts.
    """
    rows = list(_rows(path))
    read = [_prompt(bare, row) for row in rows]
    tokens = bare.tokens(read)
    prompts: list[Any] = read if as_text else [{"prompt_token_ids": ids} for ids in tokens]
    began = time.perf_counter()
    cached = await asyncio.gather(
        *(bare.take(prompt, row.tokens) for prompt, row in zip(prompts, rows, strict=True))
    )
    return {
        "seconds": time.perf_counter() - began,
        "tokens_in": sum(map(len, tokens)),
        "cached": sum(cached),
    }


async def run_batch(bare: Bare, path: str, source: str, name: str) -> dict[str, Any]:
    """VLLM's own `run-batch` over the file, on this engine: without the engine's start."""
    from vllm.entrypoints.launchers import run_batch as own

    answers = Path(f"{path}.out")
    given, sys.argv = sys.argv, [
        *("run-batch", "-i", path, "-o", str(answers)),
        *("--model", source, "--served-model-name", name),
    ]  # fmt: skip
    try:
        arguments = own.parse_args()  # type: ignore[no-untyped-call]  # as vLLM has it
    finally:
        sys.argv = given
    began = time.perf_counter()
    await own.run_batch(bare.engine, arguments)
    seconds = time.perf_counter() - began
    good = sum(json.loads(line)["error"] is None for line in _lines(str(answers)))
    return {"seconds": seconds, "good": good}


async def live(
    bare: Bare, path: str, seconds: float, people: int, pause: float, tokens: int
) -> dict[str, Any]:
    """Calls beside the rows of a file that fill the engine, all of one rank."""
    first, gaps = list[float](), list[float]()
    prompts = bare.tokens([_prompt(bare, row) for row in _rows(path)])
    all_rows = itertools.cycle(zip(prompts, _rows(path), strict=True))

    async def fill() -> None:
        for ids, row in all_rows:
            await bare.take({"prompt_token_ids": ids}, row.tokens)

    async def person(number: int, until: float) -> None:
        turns = itertools.count()
        while time.perf_counter() < until:
            text = f"{time.time_ns()} {number} {rows_of.texts(200)[next(turns) % 200]}"
            times = await _times(bare, bare.prompt(text), tokens)
            first.append(times[0])
            gaps.extend(times[1:])
            await asyncio.sleep(pause)

    fillers = [asyncio.create_task(fill()) for _ in range(int(1.25 * bare.seats))]
    try:
        # Until rows end at all times, and not all at once.
        await asyncio.sleep(seconds / 2)
        until = time.perf_counter() + seconds
        await asyncio.gather(*(person(number, until) for number in range(people)))
    finally:
        for one in fillers:
            one.cancel()
        await asyncio.gather(*fillers, return_exceptions=True)
    return {"first": first, "gaps": gaps}


async def _times(bare: Bare, prompt: str, tokens: int) -> list[float]:
    """Milliseconds to each output of a prompt, from the one before."""
    seen = [time.perf_counter()]
    await bare.run(prompt, tokens, on_tokens=lambda: seen.append(time.perf_counter()))
    return [1000 * (after - before) for before, after in itertools.pairwise(seen)]


def _prompt(bare: Bare, row: _Row) -> str:
    """The row's text as the model reads it."""
    return row.text if row.is_plain else bare.prompt(row.text)


def _rows(path: str) -> Iterator[_Row]:
    for line in _lines(path):
        body = json.loads(line)["body"]
        if "input" in body:
            yield _Row(body["input"], 0)
        elif "prompt" in body:
            yield _Row(body["prompt"], body["max_tokens"], is_plain=True)
        else:
            yield _Row(body["messages"][0]["content"], body["max_tokens"])


def _lines(path: str) -> Iterable[str]:
    return Path(path).read_text().splitlines()


JOBS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "texts": texts,
    "file": file,
    "run_batch": run_batch,
    "live": live,
}

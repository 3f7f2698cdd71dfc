"""The baseline of every rate: vLLM's AsyncLLM alone in a process, its outputs discarded.

Reads a number of rows a line from standard input, answers with rows per second.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.rows import CHAT, EMBEDDINGS, OUTPUT_TOKENS, texts
from shared.catalog import Catalog, Model, Pool
from shared.catalog_file import load_catalog


class BareEngine:
    """The process, from the side that measures; ready once it has warmed up."""

    def __init__(self, catalog: Path, model: str, kind: str, environment: dict[str, str]) -> None:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare", str(catalog), model, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._answer()
        #: Seconds from nothing to an engine that answers.
        self.start_seconds = time.perf_counter() - began
        self.rate(600)

    def rate(self, rows: int) -> float:
        """Rows per second."""
        return self._ask({"rows": rows, "tokens": OUTPUT_TOKENS})

    def seconds(self, *, tokens: int) -> float:
        """How long one row takes."""
        return 1 / self._ask({"rows": 1, "tokens": tokens})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _ask(self, question: dict[str, int]) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("RATE "):
                return float(line.removeprefix("RATE "))
        raise RuntimeError(f"The bare engine ended with {self._process.wait()}.")


def alone_arguments(model: Model, pool: Pool) -> dict[str, Any]:
    """The arguments of an engine that nothing else stands before: without a server's, as for tools.

    It has no other rows, so it needs no spare seats.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    from worker.engine_config import engine_arguments

    arguments = engine_arguments(model, pool) | {"max_num_seqs": model.seats}
    known = {field.name for field in fields(AsyncEngineArgs)}
    return {name: value for name, value in arguments.items() if name in known}


@contextmanager
def bare_vllm(
    catalog: Catalog, model_name: str, kind: str
) -> Iterator[Callable[[str, int], Awaitable[None]]]:
    """A function that runs a text on vLLM alone, in this process; a chat row generates `tokens`."""
    from transformers import AutoTokenizer
    from vllm import PoolingParams, SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    from worker.engine_environment import engine_environment

    model = catalog.model(model_name)
    pool = catalog.pools[catalog.lane_of(model_name).pool]
    # The engine's core process needs these.
    os.environ.update(engine_environment(model, pool))
    arguments = alone_arguments(model, pool)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model.source, **arguments))
    tokenizer = AutoTokenizer.from_pretrained(model.source)
    limiter = asyncio.Semaphore(int(arguments["max_num_seqs"] * 1.1) + 1)
    numbers = iter(range(10**9))

    async def run(text: str, tokens: int) -> None:
        async with limiter:
            outputs: AsyncIterator[Any]
            if kind == EMBEDDINGS:
                outputs = engine.encode(text, PoolingParams(task="embed"), str(next(numbers)))
            else:
                prompt = tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}],
                    tokenize=False,
                    add_generation_prompt=True,
                )
                sampling = SamplingParams(
                    max_tokens=tokens,
                    temperature=0,
                    ignore_eos=True,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                outputs = engine.generate(str(prompt), sampling, str(next(numbers)))
            async for _ in outputs:
                pass

    yield run
    engine.shutdown()


async def _serve(path: Path, model_name: str, kind: str) -> None:
    with bare_vllm(load_catalog(path), model_name, kind) as run:

        async def measure(rows: int, tokens: int) -> None:
            start = time.perf_counter()
            await asyncio.gather(*(run(text, tokens) for text in texts(rows)))
            sys.stdout.write(f"RATE {rows / (time.perf_counter() - start)}\n")
            sys.stdout.flush()

        await measure(1, 1)
        while question := await asyncio.to_thread(sys.stdin.readline):
            wanted = json.loads(question)
            await measure(wanted["rows"], wanted["tokens"])


if __name__ == "__main__":
    assert sys.argv[3] in (CHAT, EMBEDDINGS)
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))

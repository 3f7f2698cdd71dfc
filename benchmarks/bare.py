"""The baseline of every rate: vLLM's AsyncLLM alone in a process, its outputs discarded.

Reads a question a line from standard input, in JSON, and answers with what it measured. A question
that comes before the answer takes the place of the one before.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.rows import CHAT, EMBEDDINGS, OUTPUT_TOKENS
from shared.catalog import Catalog, Model, Pool
from shared.catalog_file import load_catalog

_ANSWER = "MEASURED "


class BareProcess:
    """The process, from the side that measures. What it writes of itself goes into `log`."""

    def __init__(
        self,
        catalog: Path,
        model: str,
        kind: str,
        environment: dict[str, str],
        *,
        log: Path | None = None,
    ) -> None:
        self._began = time.perf_counter()
        self._number = 0
        with (log or Path(os.devnull)).open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.bare", str(catalog), model, kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        #: Seconds from nothing to an engine that answers; 0 until then.
        self.start_seconds = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Return when the engine answers. Raises RuntimeError when its process ends before."""
        if not self.start_seconds:
            self._answer()
            self.start_seconds = time.perf_counter() - self._began

    def ask(self, do: str, **how: Any) -> dict[str, Any]:
        """What one of `benchmarks.bare_jobs` measured. Raises RuntimeError if it could not."""
        self.wait()
        assert self._process.stdin is not None
        self._number += 1
        self._process.stdin.write(json.dumps({"number": self._number, "do": do, **how}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"The bare engine failed: {answer['error']}")
        return answer

    def stop(self) -> None:
        """End it, at the latest in half a minute."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        # `readline`, because an iterator would not go on after an interruption.
        while line := self._process.stdout.readline():
            if line.startswith(_ANSWER):
                answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
                # An older one is that of a question that was given up.
                if answer["number"] == self._number:
                    return answer
        raise RuntimeError(f"The bare engine ended with {self._process.wait()}.")


class BareEngine(BareProcess):
    """The process with an engine that has warmed up."""

    def __init__(self, catalog: Path, model: str, kind: str, environment: dict[str, str]) -> None:
        super().__init__(catalog, model, kind, environment)
        self.wait()
        self.rate(600)

    def rate(self, rows: int) -> float:
        """Rows per second."""
        return rows / float(self.ask("texts", rows=rows, tokens=OUTPUT_TOKENS)["seconds"])

    def seconds(self, *, tokens: int) -> float:
        """How long one row takes."""
        return float(self.ask("texts", rows=1, tokens=tokens)["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def alone_arguments(model: Model, pool: Pool) -> dict[str, Any]:
    """The arguments of an engine that nothing else stands before: without a server's, as for tools.

    It has no other rows, so it needs no spare seats.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    from worker.engine_config import engine_arguments

    arguments = engine_arguments(model, pool) | {"max_num_seqs": model.seats}
    known = {field.name for field in fields(AsyncEngineArgs)}
    return {name: value for name, value in arguments.items() if name in known}


class Bare:
    """vLLM alone in this process, with somewhat more rows at once than it has seats."""

    def __init__(self, engine: Any, tokenizer: Any, kind: str, seats: int) -> None:
        self.engine = engine
        self.kind = kind
        self.seats = seats
        self._tokenizer = tokenizer
        self._limiter = asyncio.Semaphore(int(seats * 1.1) + 1)
        self._numbers = iter(range(10**9))

    def prompt(self, text: str) -> str:
        """The text as the model reads it, with its chat template."""
        if self.kind == EMBEDDINGS:
            return text
        return str(
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        )

    def tokens(self, prompts: list[str]) -> list[list[int]]:
        """The tokens of prompts as the model reads them."""
        special = self.kind == EMBEDDINGS
        found: list[list[int]] = self._tokenizer(prompts, add_special_tokens=special)["input_ids"]
        return found

    async def __call__(self, text: str, tokens: int) -> None:
        """Run a text; a chat row generates `tokens` tokens."""
        async with self._limiter:
            await self.run(self.prompt(text), tokens)

    async def take(self, prompt: Any, tokens: int) -> int:
        """Run a prompt when there is room; how many of its tokens were in the prefix cache."""
        async with self._limiter:
            last = await self.run(prompt, tokens)
        return getattr(last, "num_cached_tokens", None) or 0

    async def run(
        self, prompt: Any, tokens: int, *, on_tokens: Callable[[], None] | None = None
    ) -> Any:
        """The last output of a prompt: a text, or vLLM's form of tokens."""
        from vllm import PoolingParams, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        number = str(next(self._numbers))
        outputs: AsyncIterator[Any]
        if self.kind == EMBEDDINGS:
            outputs = self.engine.encode(prompt, PoolingParams(task="embed"), number)
        else:
            kinds = RequestOutputKind
            sampling = SamplingParams(
                max_tokens=tokens,
                temperature=0,
                ignore_eos=True,
                output_kind=kinds.DELTA if on_tokens else kinds.FINAL_ONLY,
            )
            outputs = self.engine.generate(prompt, sampling, number)
        last = None
        async for output in outputs:
            last = output
            if on_tokens is not None:
                on_tokens()
        return last


@contextmanager
def bare_vllm(catalog: Catalog, model_name: str, kind: str) -> Iterator[Bare]:
    """VLLM alone, in this process."""
    from transformers import AutoTokenizer
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from worker.engine_environment import engine_environment

    model = catalog.model(model_name)
    pool = catalog.pools[catalog.lane_of(model_name).pool]
    # The engine's core process needs these.
    os.environ.update(engine_environment(model, pool))
    arguments = alone_arguments(model, pool)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model.source, **arguments))
    tokenizer = AutoTokenizer.from_pretrained(model.source)
    yield Bare(engine, tokenizer, kind, int(arguments["max_num_seqs"]))
    engine.shutdown()


async def _serve(path: Path, model_name: str, kind: str) -> None:
    from benchmarks.bare_jobs import JOBS, texts

    def say(number: int, answer: dict[str, Any]) -> None:
        sys.stdout.write(f"{_ANSWER}{json.dumps({'number': number, **answer})}\n")
        sys.stdout.flush()

    with bare_vllm(load_catalog(path), model_name, kind) as bare:

        async def answer(number: int, do: str, **how: Any) -> None:
            try:
                say(number, await JOBS[do](bare, **how))
            except Exception as error:  # noqa: BLE001  # whoever asked is told
                say(number, {"error": f"{type(error).__name__}: {error}"[:1000]})

        await texts(bare, rows=1, tokens=1)
        say(0, {})
        job: asyncio.Task[None] | None = None
        while question := await asyncio.to_thread(sys.stdin.readline):
            if job is not None and job.cancel():
                await asyncio.wait([job])
            job = asyncio.create_task(answer(**json.loads(question)))


if __name__ == "__main__":
    assert sys.argv[3] in (CHAT, EMBEDDINGS)
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))

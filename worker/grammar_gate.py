"""Lets no grammar into the engine that was not compiled elsewhere first, within limits.

vLLM converts grammars on the event loop that serves all rows, compiles them in the few threads of
its core process, and asks them at each step what may come next. None of it has a limit of its own.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import structlog

from shared.openai.row_limits import RowLimits
from shared.openai.torn_texts import TORN, is_torn
from worker.engine_errors import Answer
from worker.engine_results import SERVER_ERROR, refusal
from worker.grammars import Grammar

log = structlog.get_logger()

#: Verdicts that are kept: many rows have the same grammar.
_MAX_VERDICTS = 10_000
#: Of a processor, for what holds up all rows each time: converting, and one step.
_CONVERT_SECONDS, _STEP_SECONDS = 0.5, 0.05
#: A trial that is not over after so many times its limit is given up, as on a machine without time.
_PATIENCE = 30
_READ_BYTES = 65_536
#: What the process needs of the environment, which may hold secrets.
_VARIABLES = ("HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")


def tokenizer_description(vllm_config: Any) -> str:
    """The tokenizer as vLLM's compiler of grammars has it."""
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    model = vllm_config.model_config
    tokenizer = cached_tokenizer_from_config(model_config=model)
    backend = XgrammarBackend(vllm_config, tokenizer=tokenizer, vocab_size=model.get_vocab_size())
    # A compiler does not give away its tokenizer, and what it has compiled does.
    return backend.compiler.compile_builtin_json_grammar().tokenizer_info.serialize_json()


def needs_trials(vllm_config: Any) -> bool:
    """Whether vLLM's compiler of grammars leaves them without limits of its own."""
    backend: str = vllm_config.structured_outputs_config.backend
    return backend != "guidance"


class GrammarGate:
    """Belongs to the event loop of the replica. One trial of each tenant runs at a time."""

    def __init__(self, limits: RowLimits, describe_tokenizer: Callable[[], str]) -> None:
        """`describe_tokenizer` is slow, and called when the first grammar comes."""
        self._limits = limits
        self._describe_tokenizer = describe_tokenizer
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._asked: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._ids = count()
        self._slots = asyncio.Semaphore(max(2, (os.cpu_count() or 1) // 2))

    async def refused(self, tenant: str, grammars: Iterable[Grammar]) -> Answer | None:
        """The result of a request with a grammar that costs too much; None if none does."""
        for grammar in grammars:
            if is_torn(grammar.text):
                return refusal(f"{TORN}.", param=grammar.param)
            if grammar.is_untried:
                return refusal(
                    "Schemas with `patternProperties` are not taken, because nothing bounds what "
                    "compiling one costs. Name the properties, or use `additionalProperties`.",
                    param=grammar.param,
                    code="grammar_too_complex",
                )
            try:
                is_good = await self._is_good(tenant, grammar)
            except (OSError, RuntimeError, ValueError) as error:
                # Without a traceback, whose values may be the tenant's.
                log.error("grammar.not_tried", reason=type(error).__name__)  # noqa: TRY400
                return refusal(
                    "What this schema or grammar costs could not be found out. Try again later.",
                    status=SERVER_ERROR,
                    param=grammar.param,
                    code="grammar_not_tried",
                )
            if not is_good:
                return refusal(
                    "This schema or grammar takes too long: compiling one may take "
                    f"{self._limits.grammar_seconds:g} seconds of a processor, and reading it "
                    f"{_CONVERT_SECONDS:g}. Use smaller bounds (maxItems, maxLength, {{m,n}}), "
                    "fewer values, and less nesting.",
                    param=grammar.param,
                    code="grammar_too_complex",
                )
        return None

    async def close(self) -> None:
        """End the process."""
        if self._process is not None and self._listening is not None:
            _end(self._process)
            await asyncio.wait([self._listening])

    async def _is_good(self, tenant: str, grammar: Grammar) -> bool:
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        digest = grammar.digest
        if digest not in self._verdicts:
            async with turn:
                if digest not in self._verdicts:
                    async with self._slots:
                        self._verdicts[digest] = self._judge(await self._measure(grammar))
        self._verdicts.move_to_end(digest)
        if len(self._verdicts) > _MAX_VERDICTS:
            self._verdicts.popitem(last=False)
        return self._verdicts[digest]

    def _judge(self, found: Mapping[str, Any]) -> bool:
        limits = {
            "convert": _CONVERT_SECONDS,
            "compile": self._limits.grammar_seconds,
            "step": _STEP_SECONDS,
        }
        return not found.get("died") and all(
            found.get(name, 0.0) <= limit for name, limit in limits.items()
        )

    async def _measure(self, grammar: Grammar) -> Mapping[str, Any]:
        """What `worker.grammar_trial` says of it. Raises OSError and TimeoutError."""
        process = await self._started()
        assert process.stdin is not None  # noqa: S101  # it is a pipe
        id_ = str(next(self._ids))
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[id_] = answer
        asked = {
            "id": id_,
            "kind": grammar.kind,
            "text": _as_compiled(grammar),
            "seconds": self._limits.grammar_seconds,
            "bytes": self._limits.grammar_bytes,
            "convert": _CONVERT_SECONDS,
            "step": _STEP_SECONDS,
        }
        try:
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            await process.stdin.drain()
            async with asyncio.timeout(_PATIENCE * (1 + self._limits.grammar_seconds)):
                return await answer
        finally:
            del self._asked[id_]

    async def _started(self) -> Process:
        async with self._starting:
            if self._process is not None and self._listening and not self._listening.done():
                return self._process
            description = await asyncio.to_thread(self._describe_tokenizer)
            environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "worker.grammar_trial",
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                # Its own group, with all that it forks.
                start_new_session=True,
                # Threads would not survive its forks.
                env={**environment, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            )
            assert process.stdin is not None  # noqa: S101  # it is a pipe
            process.stdin.write(json.dumps({"tokenizer": description}).encode() + b"\n")
            self._process = process
            self._listening = asyncio.create_task(self._listen(process))
            return process

    async def _listen(self, process: Process) -> None:
        answering = asyncio.create_task(self._take_answers(process))
        assert process.stderr is not None  # noqa: S101  # it is a pipe
        # What it has forked does not hold this one open, so it ends with the process.
        while await process.stderr.read(_READ_BYTES):
            pass
        _end(process)
        await asyncio.wait([answering])
        await process.wait()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionResetError())

    async def _take_answers(self, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        async for line in process.stdout:
            answer = json.loads(line)
            future = self._asked.get(answer["id"])
            if future is not None and not future.done():
                future.set_result(answer)


def _as_compiled(grammar: Grammar) -> str:
    """The text that vLLM compiles, which is another one for a grammar in Lark's syntax."""
    from vllm.v1.structured_output.utils import convert_lark_to_ebnf, grammar_is_likely_lark

    if grammar.kind != "ebnf" or not grammar_is_likely_lark(grammar.text):
        return grammar.text
    try:
        return convert_lark_to_ebnf(grammar.text)
    except ValueError:
        # The engine refuses it in its own words, or has another compiler for it.
        return grammar.text


def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

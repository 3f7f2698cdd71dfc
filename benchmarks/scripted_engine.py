"""A scripted engine: `python -m benchmarks.scripted_engine HOST PORT`.

Takes the time of a 7B model on an H100 and answers with made-up text. What stands in front of a
real one stands in front of it, too: the queue in which rows wait for their seats.
"""

import asyncio
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from shared.ordering.work import Work
from shared.slices import SliceUsage
from worker.engine_errors import Result, Results
from worker.engine_results import refusal
from worker.engine_seats import Capacity, StepOutput
from worker.entrance import Entrance, Guest, WithdrawnError
from worker.live_control import Goals
from worker.ranks import is_small
from worker.row_groups import GROUP_SECONDS, in_groups
from worker.step_limit import StepLimit

_OK = 200
_CHARACTERS_PER_TOKEN = 4
_LENGTH_BYTES = 4


class Pace(NamedTuple):
    """How long a step takes, as measured: 300 tokens in and 128 out are about 85 rows a second."""

    seats: int = 256
    spare_seats: int = 16
    live_seats: int = 0
    kv_tokens: int = 131_000
    spare_kv: float = 0.06
    step_seconds: float = 0.008
    row_seconds: float = 0.000_06
    #: The most prompt tokens of a step, and what so many take.
    step_tokens: int = 8192
    prefill_seconds: float = 0.1
    #: How much longer a step takes that has prompts, besides.
    mixed_seconds: float = 0.0

    def seconds(self, rows: int, prompt_tokens: int) -> float:
        """Of one step."""
        prefill = self.prefill_seconds * prompt_tokens / self.step_tokens
        mixed = self.mixed_seconds if prompt_tokens else 0.0
        return self.step_seconds + self.row_seconds * rows + prefill + mixed


@dataclass(eq=False, slots=True)
class _Row:
    id: str
    prompt_tokens: int
    output_tokens: int
    tenant: str
    done: asyncio.Future[None]
    #: Of its prompt, what no step has computed.
    prompt_left: int
    #: When it had each token, if somebody hears them.
    heard_at: list[float] | None = None
    #: The step before its first one.
    began_at: int = 0
    has_left: bool = False

    def had(self, step: int) -> int:
        """Its tokens after that step."""
        return step - self.began_at


@dataclass
class Steps:
    """What vLLM does: rows begin in the order of their ranks, and have a token from each step."""

    pace: Pace
    #: What live calls leave of a step to the prompts of the others.
    limit: StepLimit = field(default_factory=StepLimit)
    #: What each tenant's rows have had, in tokens of prompts and answers.
    computed: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    #: The same of all, also of rows that run.
    tokens: int = 0
    running: int = 0
    #: Steps so far, those of them that had prompts, and the sequences of all.
    steps: int = 0
    mixed_steps: int = 0
    sequences: int = 0
    _tokens: int = 0
    _step: int = 0
    _waiting: list[tuple[int, int, _Row]] = field(default_factory=list)
    _ends: list[tuple[int, int, _Row]] = field(default_factory=list)
    _heard: set[_Row] = field(default_factory=set)
    #: What the step leaves out.
    _waits: set[_Row] = field(default_factory=set)
    _numbers: Any = field(default_factory=itertools.count)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, row: _Row, rank: int) -> None:
        """Return when the row has its last token; one that is cancelled makes room."""
        heappush(self._waiting, (rank, next(self._numbers), row))
        self._came.set()
        try:
            await row.done
        finally:
            row.has_left = True
            self.limit.leave(row.id)
            self._heard.discard(row)

    async def go_on(self, entrance: Entrance) -> None:
        """Make one step after another, until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not self._ends and not self._waiting:
                self._came.clear()
                await self._came.wait()
                due = clock()
            prompt_tokens = self._begin()
            due += self.pace.seconds(self.running - len(self._waits), prompt_tokens)
            # A machine that is late catches up.
            await asyncio.sleep(max(0.0, due - clock()))
            for row in self._heard:
                assert row.heard_at is not None
                row.heard_at.append(clock())
            outputs = self._end_step()
            entrance.note(self._tokens / self.pace.kv_tokens, outputs)

    def _begin(self) -> int:
        """Compute prompts of rows that wait, which begin then; returns their tokens."""
        tokens = 0
        self.limit.begin()
        self._waits = {row for *_, row in self._ends if not self.limit.answers(row.id)}
        seats = self.pace.seats + self.pace.spare_seats + self.pace.live_seats
        while self._waiting and self.running < seats and tokens < self.pace.step_tokens:
            rank, _, row = first = heappop(self._waiting)
            if row.has_left:
                continue
            part = min(row.prompt_left, self.pace.step_tokens - tokens)
            part = self.limit.take(row.id, part, may_split=True, goes_first=rank < 0)
            tokens += part
            row.prompt_left -= part
            if row.prompt_left:
                heappush(self._waiting, first)
                break
            self.running += 1
            row.began_at = self._step
            self._tokens += row.prompt_tokens
            self.computed[row.tenant] += row.prompt_tokens
            if row.heard_at is not None:
                self._heard.add(row)
            heappush(self._ends, (self._step + row.output_tokens, next(self._numbers), row))
        self.tokens += tokens
        self.steps += 1
        self.mixed_steps += bool(tokens)
        self.sequences += self.running
        return tokens

    def _end_step(self) -> list[StepOutput]:
        self._step += 1
        gone = [row for *_, row in self._ends if row.has_left]
        if gone:
            self._ends = sorted(entry for entry in self._ends if not entry[2].has_left)
        if self._waits:
            for row in self._waits:
                row.began_at += 1
            self._ends = sorted(
                (end + (row in self._waits), number, row) for end, number, row in self._ends
            )
        has_token = [one for one in self._ends if one[2] not in self._waits]
        self._tokens += len(has_token) + len(gone)
        self.tokens += len(has_token)
        outputs = [StepOutput(row.id, 1, end <= self._step) for end, _, row in has_token]
        done: list[_Row] = []
        while self._ends and self._ends[0][0] <= self._step:
            *_, row = heappop(self._ends)
            self.computed[row.tenant] += row.output_tokens
            if not row.done.done():
                # One that was cancelled a moment ago has not noticed yet.
                row.done.set_result(None)
            done.append(row)
        self._tokens -= sum(row.prompt_tokens + row.had(self._step) for row in done + gone)
        self.running -= len(done) + len(gone)
        return outputs


class ScriptedEngine:
    """One replica."""

    def __init__(
        self,
        pace: Pace,
        clock: Callable[[], float] = time.time,
        goals: Goals | None = None,
    ) -> None:
        """With `goals` it takes live calls, as `Entrance` does."""
        self._entrance = Entrance(
            Capacity(
                pace.seats,
                pace.spare_seats,
                pace.spare_kv,
                pace.kv_tokens,
                step_tokens=pace.step_tokens,
                live_seats=pace.live_seats,
            ),
            clock,
            goals,
        )
        self._steps = Steps(pace, StepLimit(clock))
        self._ids = itertools.count()
        self._came_at: dict[str, float] = {}
        self._left_at: dict[str, float] = {}

    @property
    def tokens(self) -> int:
        """What it has computed, in tokens of prompts and answers."""
        return self._steps.tokens

    @property
    def mixed_part(self) -> float:
        """Which part of its steps had prompts."""
        return self._steps.mixed_steps / self._steps.steps

    @property
    def filled_part(self) -> float:
        """Which part of the seats had a sequence, in the mean of all steps."""
        return self._steps.sequences / (self._steps.steps * self._steps.pace.seats)

    def go_on(self) -> Coroutine[Any, Any, None]:
        """Compute until cancelled."""
        return self._steps.go_on(self._entrance)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client's call; its rows leave when it goes."""
        with suppress(OSError, asyncio.IncompleteReadError):
            call = await receive(reader)
            if (batch_id := call.get("withdraw")) is not None:
                self.withdraw(batch_id)
            elif "lines" in call:
                order = msgspec.convert(call["order"], list[Work])
                answering = asyncio.ensure_future(self._answer_all(writer, call["lines"], order))
                leaving = asyncio.ensure_future(reader.read(1))
                await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
                if not answering.done():
                    answering.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)
            else:
                await send(writer, (self._steps.computed, self._came_at, self._left_at))
            await send(writer, None)
        writer.close()

    async def _answer_all(
        self, writer: asyncio.StreamWriter, lines: Sequence[bytes], order: Sequence[Work]
    ) -> None:
        async with aclosing(self.answers(lines, order)) as groups:
            async for group in groups:
                await send(writer, group)

    def withdraw(self, batch_id: str) -> None:
        """Take out all lines of the batch that still wait."""
        self._entrance.withdraw(batch_id)

    async def answers(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        """The results of these lines, as they come."""
        rows = map(self._answer, lines, order)
        async with aclosing(in_groups(rows, seconds=GROUP_SECONDS)) as groups:
            async for group in groups:
                results = [(number, one) for number, one in group if one is not None]
                if results:
                    yield results

    async def _answer(self, line: bytes, work: Work) -> Result | None:
        body = json.loads(line)["body"]
        prompt_tokens = len(body["messages"][-1]["content"]) // _CHARACTERS_PER_TOKEN
        output_tokens = body["max_tokens"]
        if prompt_tokens + output_tokens > self._steps.pace.kv_tokens:
            return refusal("The request needs more tokens than the engine has room for.")
        self._came_at.setdefault(work.batch_id, time.time())
        try:
            await self.run(work, prompt_tokens, output_tokens)
        except WithdrawnError:
            return None
        self._left_at[work.batch_id] = time.time()
        return _OK, json.dumps(_said(body["model"], prompt_tokens, output_tokens)).encode()

    async def run(self, work: Work, prompt_tokens: int, output_tokens: int) -> None:
        """Take the time of a row with so many tokens. Raises WithdrawnError."""
        async with self._entrance.entered(work) as guest:
            await self._run(guest, prompt_tokens, output_tokens, None)
            usage = SliceUsage(1, 0, prompt_tokens, 0, output_tokens, 0)
            self._entrance.learn(guest, usage)

    async def run_live(self, tenant: str, prompt_tokens: int, output_tokens: int) -> list[float]:
        """Take the time of a live call; returns when it had each of its tokens."""
        heard_at: list[float] = []
        with self._entrance.entered_live(tenant, "") as guest:
            await self._run(guest, prompt_tokens, output_tokens, heard_at)
        return heard_at

    async def _run(
        self, guest: Guest, prompt_tokens: int, output_tokens: int, heard_at: list[float] | None
    ) -> None:
        id_ = str(next(self._ids))
        seat = await self._entrance.seat(id_, prompt_tokens=prompt_tokens, max_tokens=output_tokens)
        rank = guest.row.rank or 0
        told = None if seat is None else seat.told
        self._steps.limit.add(id_, told, is_small=is_small(rank))
        done = asyncio.get_running_loop().create_future()
        tenant = guest.row.work.tenant
        row = _Row(id_, prompt_tokens, output_tokens, tenant, done, prompt_tokens, heard_at)
        await self._steps.run(row, rank)


def _said(model: str, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": "text" * output_tokens}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_795_000_000,
        "model": model,
        "choices": [{"index": 0, "finish_reason": "length", "message": message}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        },
    }


async def send(writer: asyncio.StreamWriter, message: Any) -> None:
    """Write a message, the last one of a call being None."""
    body = msgspec.msgpack.encode(message)
    writer.write(len(body).to_bytes(_LENGTH_BYTES) + body)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises IncompleteReadError when the other side is gone."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    return msgspec.msgpack.decode(await reader.readexactly(length))


async def called(host: str, port: int, call: Any) -> AsyncGenerator[Any, None]:
    """The messages that answer a call. Raises OSError or IncompleteReadError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        await send(writer, call)
        while (message := await receive(reader)) is not None:
            yield message
    finally:
        writer.close()


class Report(NamedTuple):
    """What an engine says of itself."""

    #: What each tenant's rows have had, in tokens of prompts and answers.
    computed: dict[str, float]
    #: When the first row of each batch came, and when the last one left, in Unix seconds.
    came_at: dict[str, float]
    left_at: dict[str, float]


async def report(host: str, port: int) -> Report:
    """What the engine there says of itself."""
    async with aclosing(called(host, port, {})) as answers:
        return Report(*await anext(answers))


async def serve(host: str, port: int) -> None:
    """Answer until killed."""
    engine = ScriptedEngine(Pace())
    server = await asyncio.start_server(engine.take, host, port, backlog=1024)
    await asyncio.gather(server.serve_forever(), engine.go_on())


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))

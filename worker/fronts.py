"""The front processes of a replica, from the side that has vLLM's core, the queue and the seats.

A row is given to a front when it may enter. What the front adds to the core waits here for a seat,
in the row's place; what the core says goes to the front that has the row.
"""

import asyncio
import contextvars
import itertools
import os
import pickle
import signal
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]  # it has no types
import structlog

from shared.errors import SetupError, TransientError
from worker.core_sequences import EncodedSequence, can_gather
from worker.engine_results import SERVER_ERROR, failure
from worker.few_at_a_time import Few, FewAtATime
from worker.fork_server import ForkServer, Kind
from worker.front_link import (
    Abort,
    Add,
    Answer,
    Cancel,
    Link,
    Message,
    Outputs,
    Ping,
    Pong,
    Ready,
    Row,
    Setup,
)
from worker.row_requests import RowAnswer

log = structlog.get_logger()

#: A front that cannot start so many times in a row needs another replica.
_MAX_FAILURES = 3
#: The pause before another one is tried, in seconds.
_PAUSE_SECONDS = 5.0
#: How often a front is asked whether it lives, and how long it may be silent, in seconds.
_PING_SECONDS, _SILENT_SECONDS = 5.0, 60.0
#: What is sent to a front of vectors waits for so many seconds, so that more of it goes together:
#: each message costs both as much as a row. What belongs to a small batch does not wait.
_LINGER_SECONDS = 0.005

#: What fronts say of rows.
_OfRows: TypeAlias = Add | Answer | Abort


class FrontGoneError(TransientError):
    """The front that had the row died: it has no result, and the row may be the reason."""


@dataclass(eq=False, slots=True)
class _GivenRow:
    """A row that a front has, and the context of the task that waits for it."""

    answer: "asyncio.Future[RowAnswer]"
    context: contextvars.Context
    #: Whether it goes before others.
    is_first: bool
    #: What of it waits for a seat.
    adding: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    #: What of it the core has, or is about to have.
    sequences: set[str] = field(default_factory=set)


class _Front:
    """One process, as long as it lives."""

    def __init__(self, index: int) -> None:
        self.index = index
        #: Known once it is ready.
        self.pid: int | None = None
        self.rows: dict[int, _GivenRow] = {}
        self.is_ready = asyncio.Event()
        self.is_gone = asyncio.Event()
        self.link: Link

    def end(self) -> None:
        """Kill it, if it still lives."""
        if self.pid is not None and not self.is_gone.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.link.close()


class Fronts:
    """Belongs to the event loop of the replica."""

    def __init__(self, count: int, server: ForkServer, few: Few) -> None:
        """So many; of rows of vectors, `few` are taken from them at a time."""
        self.count = count
        self._server = server
        self._few = few
        self._core: Any = None
        self._setup: asyncio.Future[SimpleNamespace] = asyncio.get_running_loop().create_future()
        self._fronts: list[_Front] = []
        self._some_ready = asyncio.Event()
        self._is_watched = False
        self._numbers = itertools.count()
        #: By sequence, the front and the number of the row that it is of.
        self._owners: dict[str, tuple[_Front, int]] = {}
        self._encoder: Any = None
        self._decoder: Any = None
        #: Whether sequences that fronts have encoded are passed on so.
        self._stay_encoded = False
        #: Of all fronts, with the front that each is from.
        self._messages = self._few_at_a_time(None)
        self._linger = 0.0
        self._keeping = [asyncio.create_task(self._keep(index)) for index in range(count)]
        self._aborting: set[asyncio.Task[None]] = set()

    @property
    def unfinished(self) -> int:
        """How many sequences the core has, or is about to have."""
        return len(self._owners)

    @property
    def pids(self) -> set[int]:
        """The processes of the fronts, and the one that forks them."""
        return {self._server.pid, *(front.pid for front in self._fronts if front.pid)}

    async def connect(self, client: Any, args: Any) -> None:
        """Stand before the core of this `AsyncLLM`; returns when all fronts are ready.

        Another core may come after `end`.
        `args` are those of vLLM's server. Raises SetupError.
        """
        await self._stand_before(client, args)
        if not self._is_watched:
            self._is_watched = True
            for keeping in self._keeping:
                # Serve starts another replica, which is what is left to try.
                keeping.add_done_callback(lambda _: os._exit(1))

    def end(self) -> None:
        """The core is dead, and nobody waits for a row: other fronts take the place of these.

        They are ready once they have been connected.
        """
        self._setup = asyncio.get_running_loop().create_future()
        self._messages.forget_all()
        self._owners.clear()
        for front in list(self._fronts):
            self._fronts.remove(front)
            front.end()

    async def _stand_before(self, client: Any, args: Any) -> None:
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.serial_utils import MsgpackDecoder

        from worker.passed_vectors import PassingEncoder, pass_vectors

        self._core = client.engine_core
        self._encoder, self._decoder = PassingEncoder(), MsgpackDecoder(EngineCoreRequest)
        self._stay_encoded = can_gather(client.vllm_config)
        if client.vllm_config.model_config.runner_type == "pooling":
            self._messages, self._linger = self._few_at_a_time(self._few), _LINGER_SECONDS
            pass_vectors(self._core, self._owners.__contains__)
        self._listen_to(self._core)
        tasks = await client.get_supported_tasks()
        self._setup.set_result(
            SimpleNamespace(vllm_config=client.vllm_config, args=args, supported_tasks=tasks)
        )
        while len(self._fronts) < self.count:
            if any(one.done() for one in self._keeping):
                raise SetupError("The engine's front processes do not start; see their logs.")
            await asyncio.sleep(0.1)

    async def answer(self, line: bytes, *, is_first: bool) -> RowAnswer:
        """The answer to the request of a line, or why it may not run. Raises FrontGoneError.

        One that `is_first` goes before others in its front.
        """
        front = await self._least_loaded()
        number = next(self._numbers)
        answer: asyncio.Future[RowAnswer] = asyncio.get_running_loop().create_future()
        row = _GivenRow(answer, contextvars.copy_context(), is_first)
        front.rows[number] = row
        front.link.send(Row(number, line, is_first))
        if is_first:
            front.link.flush()
        try:
            return await row.answer
        except asyncio.CancelledError:
            front.link.send(Cancel(number))
            raise
        finally:
            front.rows.pop(number, None)
            await self._leave(row)

    async def _least_loaded(self) -> _Front:
        while not self._fronts:
            self._some_ready.clear()
            await self._some_ready.wait()
        return min(self._fronts, key=lambda front: len(front.rows))

    async def _leave(self, row: _GivenRow) -> None:
        """Take what is left of the row out of the core; for most rows, nothing is."""
        for task in row.adding.values():
            task.cancel()
        ids = list(row.sequences)
        for id_ in ids:
            self._owners.pop(id_, None)
        if ids:
            await self._core.abort_requests_async(ids)

    async def _keep(self, index: int) -> None:
        """Have a front in this place, and another one after it; ends when none starts."""
        failures = 0
        while failures < _MAX_FAILURES:
            if failures:
                # What keeps a process from being made may pass.
                await asyncio.sleep(_PAUSE_SECONDS)
            # By then the server has loaded what its forks begin with.
            setup = await self._setup
            try:
                front = await self._start(index)
            except OSError as error:
                log.error("front.not_started", front=index, reason=error.strerror)  # noqa: TRY400  # it says all
                failures += 1
                continue
            ready = asyncio.create_task(front.is_ready.wait())
            gone = asyncio.create_task(front.is_gone.wait())
            front.link.send(Setup(await asyncio.to_thread(_pickled, setup, index + 1)))
            await asyncio.wait([ready, gone], return_when=asyncio.FIRST_COMPLETED)
            if front.is_ready.is_set() and not front.is_gone.is_set():
                failures = 0
                self._fronts.append(front)
                self._some_ready.set()
                await self._watch(front, gone)
                if front in self._fronts:
                    self._fronts.remove(front)
            else:
                failures += 1
            ready.cancel()
            await gone
            self._bury(front)

    async def _start(self, index: int) -> _Front:
        front = _Front(index)
        ours = await asyncio.to_thread(self._server.open, Kind.FRONT)
        front.link = Link(partial(self._take, front), front.is_gone.set, linger=self._linger)
        await asyncio.get_running_loop().create_connection(lambda: front.link, sock=ours)
        return front

    async def _watch(self, front: _Front, gone: "asyncio.Task[Any]") -> None:
        """Return when the front is gone; one that is silent for too long is killed."""
        while not gone.done():
            asked_at = time.monotonic()
            front.link.send(Ping())
            await asyncio.wait([gone], timeout=_PING_SECONDS)
            # Time in which this process stood still itself does not count.
            if (
                min(time.monotonic(), asked_at + _PING_SECONDS) - front.link.heard_at
                > _SILENT_SECONDS
            ):
                log.error("front.hung", front=front.index, rows=len(front.rows))
                front.end()

    def _bury(self, front: _Front) -> None:
        """Give back the rows of a front that is gone, but for those that it has answered."""
        self._messages.do_all()
        log.error("front.died", front=front.index, rows=len(front.rows))
        for row in front.rows.values():
            if not row.answer.done():
                row.answer.set_exception(FrontGoneError("The front that had the row died."))

    def _few_at_a_time(self, few: Few | None) -> FewAtATime[tuple[_Front, _OfRows]]:
        return FewAtATime(lambda given: self._take_of_rows(*given), few)

    def _take(self, front: _Front, message: Message) -> None:
        match message:
            case Add(number=number) | Answer(number=number):
                row = front.rows.get(number)
                is_first = row is not None and row.is_first
                self._messages.add((front, message), is_first=is_first)
            case Abort():
                self._messages.add((front, message))
            case Ready(pid=pid):
                front.pid = pid
                front.is_ready.set()
            case Pong():
                pass
            case _:
                raise TypeError(f"a replica takes no {type(message).__name__}")

    def _take_of_rows(self, front: _Front, message: _OfRows) -> None:
        match message:
            case Add():
                self._add(front, message)
            case Answer(number=number, answer=answer):
                row = front.rows.get(number)
                if row is not None and not row.answer.done():
                    row.answer.set_result(answer)
            case Abort(ids=ids):
                task = asyncio.create_task(self._abort(front, ids))
                self._aborting.add(task)
                task.add_done_callback(self._aborting.discard)

    def _add(self, front: _Front, message: Add) -> None:
        row = front.rows.get(message.number)
        if row is None:
            # It has been cancelled meanwhile.
            return
        self._owners[message.id] = front, message.number
        row.sequences.add(message.id)
        task = asyncio.create_task(self._enter(row, message), context=row.context)
        row.adding[message.id] = task

    async def _enter(self, row: _GivenRow, message: Add) -> None:
        """Give the core a sequence, once it has a seat."""
        try:
            await self._core.add_request_async(self._sequence(message))
        except Exception as error:  # noqa: BLE001  # the failure of a row is its result
            log.error("front.not_added", reason=type(error).__name__)  # noqa: TRY400
            if not row.answer.done():
                row.answer.set_result(_failed())
        finally:
            row.adding.pop(message.id, None)

    def _sequence(self, message: Add) -> Any:
        """What the core's client takes: as it came, if what it takes next does."""
        if self._stay_encoded and len(message.frames) == 1:
            return EncodedSequence(
                message.id,
                message.frames[0],
                prompt_tokens=message.prompt_tokens,
                trace_headers=message.trace_headers,
            )
        return self._decoder.decode(message.frames)

    async def _abort(self, front: _Front, ids: list[str]) -> None:
        """End sequences, of which the front knows that their answers are complete."""
        ours = []
        for id_ in ids:
            owner, number = self._owners.pop(id_, (None, 0))
            row = front.rows.get(number) if owner is front else None
            if row is not None:
                ours.append(id_)
                row.sequences.discard(id_)
                if (adding := row.adding.get(id_)) is not None:
                    adding.cancel()
        if ours:
            await self._core.abort_requests_async(ours)

    def _listen_to(self, core: Any) -> None:
        get_output = core.get_output_async

        async def get_own_output() -> Any:
            try:
                outputs = await get_output()
            except Exception:
                self._fail_all()
                raise
            return self._share_out(outputs)

        core.get_output_async = get_own_output

    def _share_out(self, outputs: Any) -> Any:
        """Send the fronts what is theirs of the core's outputs; returns the rest."""
        #: By front, and by whether it is the last of rows of small batches, which goes first.
        theirs: defaultdict[tuple[_Front, bool], list[Any]] = defaultdict(list)
        own = []
        for output in outputs.outputs:
            front, number = self._owners.get(output.request_id, (None, 0))
            if front is None:
                own.append(output)
                continue
            is_first = False
            if output.finish_reason is not None:
                del self._owners[output.request_id]
                if (row := front.rows.get(number)) is not None:
                    row.sequences.discard(output.request_id)
                    is_first = row.is_first
            theirs[front, is_first].append(output)
        stats, outputs.scheduler_stats = outputs.scheduler_stats, None
        for front, is_first in sorted(theirs, key=lambda one: not one[1]):
            outputs.outputs = theirs[front, is_first]
            frames = [bytes(frame) for frame in self._encoder.encode(outputs)]
            front.link.send(Outputs(frames, is_first))
            if is_first:
                front.link.flush()
        outputs.outputs, outputs.scheduler_stats = own, stats
        return outputs

    def _fail_all(self) -> None:
        """The core is dead: no row gets its answer."""
        for front in self._fronts:
            for row in front.rows.values():
                if not row.answer.done():
                    row.answer.set_result(_failed())


def _failed() -> RowAnswer:
    """What vLLM answers to each row of a dead engine."""
    return RowAnswer(
        *failure(SERVER_ERROR, {"message": "The engine died.", "type": "server_error"})
    )


def _pickled(setup: SimpleNamespace, index: int) -> bytes:
    """What a front needs to know, without what only the replica uses."""
    config = pickle.loads(cloudpickle.dumps(setup.vllm_config))  # noqa: S301  # a copy
    config.parallel_config.placement_group = None
    config.parallel_config._api_process_rank = index  # noqa: SLF001  # vLLM sets it so itself
    whole = SimpleNamespace(
        vllm_config=config, args=setup.args, supported_tasks=setup.supported_tasks
    )
    pickled: bytes = cloudpickle.dumps(whole)
    return pickled

"""Collects calls for a short time, asks them as one batch, and gives each its answer."""

import asyncio
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from threading import Event
from typing import Any

from batchyard.calls.answers import Answer, refused, unanswered
from batchyard.calls.batches import CallBatches
from batchyard.threads import in_thread
from shared.errors import BatchyardError, NotFoundError
from shared.lifecycle import Status

#: Each batch under way is followed by a thread and a connection, of which a client has 100; more
#: of them wait for their turn.
_MAX_BATCHES = 64
#: The bytes of a batch of several calls: a file that goes at once, and that any gateway takes.
_MAX_BYTES = 64 * 1024 * 1024
#: How long the end waits for the id of a batch. A gateway that is away gives none for longer.
_CREATE_SECONDS = 10.0


@dataclass(eq=False)
class _Call:
    custom_id: str
    line: bytes
    #: Cancelled with the task that waits for it.
    answer: "asyncio.Future[Answer]"

    def settle(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(eq=False)
class _Group:
    """Calls for the same endpoint and model that will be one batch."""

    timer: asyncio.TimerHandle
    calls: list[_Call] = field(default_factory=list)
    bytes: int = 0


@dataclass(eq=False)
class _Known:
    """A batch that an earlier process has made."""

    batch_id: str
    #: By custom id; None for a call that has no answer that can be used.
    answers: "Mapping[str, asyncio.Future[Answer | None]]"


class Calls:
    """The calls of one client, all in one event loop."""

    def __init__(self, batches: CallBatches, *, collect_seconds: float, max_calls: int) -> None:
        self._batches = batches
        self._collect_seconds = collect_seconds
        self._max_calls = max_calls
        self._groups: dict[tuple[str, str], _Group] = {}
        self._asking: set[asyncio.Task[None]] = set()
        #: One for each batch that has no id yet.
        self._creating: set[asyncio.Future[None]] = set()
        #: One for each call that has no answer yet.
        self._open: set[asyncio.Future[None]] = set()
        self._is_closing = False
        self._seats = asyncio.Semaphore(_MAX_BATCHES)
        self._stop = Event()
        self._numbers = itertools.count()
        self._same: Counter[str] = Counter()
        self._known: asyncio.Task[dict[str, _Known]] | None = None
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many calls have no answer yet."""
        return len(self._open)

    async def answer(self, endpoint: str, body: Mapping[str, Any]) -> Answer:
        """The answer to one call, also if that is an error."""
        loop = asyncio.get_running_loop()
        has_ended: asyncio.Future[None] = loop.create_future()
        self._open.add(has_ended)
        try:
            return await self._answer(endpoint, body)
        finally:
            self._open.remove(has_ended)
            has_ended.set_result(None)

    async def finish(self) -> None:
        """Send what was collected, wait until every call has its answer, and end."""
        self._is_closing = True
        try:
            for key in list(self._groups):
                self._send(key)
            while self._open:
                await asyncio.wait(self._open)
            if self._creating:
                # For a batch that nobody waits for; only with its id can it be cancelled.
                await asyncio.wait(self._creating, timeout=_CREATE_SECONDS)
            await asyncio.gather(*self._cancelling)
        finally:
            self._stop.set()
        known = [] if self._known is None else [self._known]
        tasks = [*self._asking, *self._reading.values(), *known]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._batches.close()

    async def _answer(self, endpoint: str, body: Mapping[str, Any]) -> Answer:
        try:
            known = await self._all_known()
        except BatchyardError as error:
            return refused(error)
        # A call that was refused above has no number, so that it keeps its own if it comes again.
        custom_id = self._custom_id(endpoint, body)
        if custom_id in known and (found := await self._taken_up(custom_id, known[custom_id])):
            return found
        line = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call = _Call(custom_id, json.dumps(line).encode() + b"\n", answer)
        self._add(endpoint, str(body.get("model")), call)
        return await answer

    def _custom_id(self, endpoint: str, body: Mapping[str, Any]) -> str:
        """In a run with a name: the same for the nth call of the same content."""
        if self._batches.run is None:
            return f"call-{next(self._numbers)}"
        content = json.dumps([endpoint, body], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:40]
        self._same[digest] += 1
        return f"{digest}-{self._same[digest]}"

    def _add(self, endpoint: str, model: str, call: _Call) -> None:
        key, size = (endpoint, model), len(call.line)
        if key in self._groups and self._groups[key].bytes + size > _MAX_BYTES:
            self._send(key)
        if key not in self._groups:
            loop = asyncio.get_running_loop()
            # At the end, those of the same moment: they may all have waited for the same thing.
            seconds = 0.0 if self._is_closing else self._collect_seconds
            self._groups[key] = _Group(loop.call_later(seconds, self._send, key))
        group = self._groups[key]
        group.calls.append(call)
        group.bytes += size
        if len(group.calls) >= self._max_calls:
            self._send(key)

    def _send(self, key: tuple[str, str]) -> None:
        group = self._groups.pop(key)
        group.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._ask_in_turn(key[0], group.calls))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_in_turn(self, endpoint: str, calls: Sequence[_Call]) -> None:
        async with self._seats:
            await self._ask(endpoint, calls)

    async def _ask(self, endpoint: str, calls: Sequence[_Call]) -> None:
        """Ask the calls; if some keep the others from being asked, ask those again."""
        while asked := _open(calls):
            try:
                batch_id = await self._created(endpoint, asked)
                ended = await self._followed(batch_id, asked)
            except BatchyardError as error:
                _settle(asked, refused(error))
                return
            except Exception as error:
                # Their callers would wait for ever.
                text = f"The calls could not be asked: {type(error).__name__}: {error}"
                _settle(asked, unanswered(text))
                raise
            _refuse_bad(asked, ended)

    async def _created(self, endpoint: str, calls: Sequence[_Call]) -> str:
        """The id of a new batch of these calls, which is cancelled if nobody waits for it."""
        loop = asyncio.get_running_loop()
        is_watched: asyncio.Future[None] = loop.create_future()
        self._creating.add(is_watched)
        try:
            lines = b"".join(one.line for one in calls)
            batch_id = await in_thread(partial(self._batches.create, endpoint, lines))
            self._watch(batch_id, calls)
            return batch_id
        finally:
            self._creating.remove(is_watched)
            is_watched.set_result(None)

    async def _followed(self, batch_id: str, calls: Sequence[_Call]) -> Mapping[str, Any]:
        by_id = {one.custom_id: one for one in calls}
        loop = asyncio.get_running_loop()

        def take(custom_id: str, answer: Answer) -> None:
            if call := by_id.get(custom_id):
                loop.call_soon_threadsafe(call.settle, answer)

        ended = await in_thread(partial(self._batches.follow, batch_id, take, self._stop))
        return ended or {}

    def _watch(self, batch_id: str, calls: Sequence[_Call]) -> None:
        """Cancel the batch if nobody waits for it any more, and nobody may come back for it."""
        left, is_answered = len(calls), False

        def look(answer: "asyncio.Future[Answer]") -> None:
            nonlocal left, is_answered
            left, is_answered = left - 1, is_answered or not answer.cancelled()
            if not left and not is_answered:
                task = asyncio.get_running_loop().create_task(self._cancel(batch_id))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)

        if self._batches.run is None:
            for one in calls:
                if one.answer.done():
                    look(one.answer)
                else:
                    one.answer.add_done_callback(look)

    async def _cancel(self, batch_id: str) -> None:
        with suppress(BatchyardError):
            await in_thread(partial(self._batches.cancel, batch_id))

    async def _all_known(self) -> Mapping[str, _Known]:
        """The batches that earlier processes of the run have made, by the custom ids of calls."""
        if self._batches.run is None:
            return {}
        if self._known is None or (self._known.done() and self._known.exception()):
            self._known = asyncio.get_running_loop().create_task(self._find_known())
        return await asyncio.shield(self._known)

    async def _taken_up(self, custom_id: str, known: _Known) -> Answer | None:
        """The answer that an earlier process has asked for."""
        if known.batch_id not in self._reading:
            task = asyncio.get_running_loop().create_task(self._read(known))
            self._reading[known.batch_id] = task
        return await asyncio.shield(known.answers[custom_id])

    async def _find_known(self) -> dict[str, _Known]:
        loop = asyncio.get_running_loop()
        found: dict[str, _Known] = {}
        for batch in await in_thread(self._batches.known):
            answers = {custom_id: loop.create_future() for custom_id in batch.custom_ids}
            # A call that was asked again counts where that was.
            found |= dict.fromkeys(answers, _Known(batch.id, answers))
        return found

    async def _read(self, known: _Known) -> None:
        """Read what became of an earlier batch. A call that failed there is asked again.

        It is not if nobody can tell what became of it: it may still run.
        """
        loop, answers = asyncio.get_running_loop(), known.answers
        left: Answer | None = None

        def settle(custom_id: str, answer: Answer) -> None:
            if custom_id in answers and not answers[custom_id].done():
                answers[custom_id].set_result(None if answer.is_error else answer)

        def take(custom_id: str, answer: Answer) -> None:
            loop.call_soon_threadsafe(settle, custom_id, answer)

        try:
            async with self._seats:
                await in_thread(partial(self._batches.follow, known.batch_id, take, self._stop))
        except NotFoundError:
            # It is no longer kept.
            pass
        except BatchyardError as error:
            left = refused(error)
        finally:
            for one in answers.values():
                if not one.done():
                    one.set_result(left)


def _open(calls: Iterable[_Call]) -> list[_Call]:
    """Those that have no answer, and for which somebody waits."""
    return [one for one in calls if not one.answer.done()]


def _settle(calls: Iterable[_Call], answer: Answer) -> None:
    for one in calls:
        one.settle(answer)


def _refuse_bad(calls: Sequence[_Call], ended: Mapping[str, Any]) -> None:
    """After a batch has ended: the calls that failed it get its errors, and others may go on."""
    problems = (ended.get("errors") or {}).get("data") or []
    if ended.get("status") != Status.FAILED:
        _settle(calls, unanswered("The batch ended without an answer to this call."))
        return
    bad = [one for one in problems if one.get("line")]
    for one in bad:
        status = HTTPStatus.BAD_REQUEST
        answer = unanswered(one["message"], code=one["code"], status=status)
        calls[one["line"] - 1].settle(answer)
    if not bad:
        text = problems[0]["message"] if problems else "The batch failed."
        code = problems[0]["code"] if problems else None
        _settle(calls, unanswered(text, code=code, status=HTTPStatus.BAD_REQUEST))

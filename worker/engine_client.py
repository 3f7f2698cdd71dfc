"""How a lane job talks to its engine: chunks of request lines out, results back, over Ray Serve.

Imports ray and nothing heavier: no vLLM, no torch.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import structlog
from ray import serve
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.serve.exceptions import RayServeException

from shared.cache_salt import CacheSalts
from shared.doors import Door
from shared.engines import ReplicaNumbers
from shared.errors import BatchyardError
from shared.ordering.work import Work
from worker.avoided_replicas import avoid
from worker.engine_errors import (
    EngineFailedError,
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    EngineYieldsError,
    Results,
)
from worker.engine_status import DEPLOYMENT, engine_failure, engine_state

log = structlog.get_logger()

#: How often a waiting client asks Serve about its engine, in seconds.
CHECK_SECONDS = 5.0


class EngineClient:
    """The engine of one lane. Belongs to one event loop.

    Calls that find no replica wait for one: for `patience_seconds`, or without it for as long as
    Serve tries to start one.
    """

    def __init__(
        self,
        app_name: str,
        *,
        patience_seconds: float | None = None,
        salts: CacheSalts | None = None,
    ) -> None:
        """Without `salts`, all tenants share the engine's prefix cache."""
        self._app_name = app_name
        self._salts = salts
        self._patience_seconds = patience_seconds
        self._handle: Any = None
        #: What goes on while callers do something else.
        self._running: set[asyncio.Future[None]] = set()
        #: All calls of this client share one question to Serve's controller at a time.
        self._asking = asyncio.Lock()
        self._failure: str | None = None
        self._failure_asked_at = 0.0
        #: When a replica was last seen, or else when the wait for one began.
        self._seen_at: float | None = None
        self._state_asked_at = 0.0

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        """The results of these lines of an OpenAI batch file, as they come.

        All lines go to one replica; `order` has a work for each of them. Waits while the engine
        starts. A line without a result at the end was withdrawn. Raises EngineGoneError,
        EngineUnavailableError or EngineFailedError for the lines without a result; after
        EngineYieldsError, the next call goes to another replica. Closing the
        generator aborts them in the engine.
        """
        async with aclosing(self._call(lines, order)) as results:
            while group := await self._next(results):
                yield group

    async def withdraw(self, batch_id: str) -> None:
        """Take out all lines of the batch that still wait, in every replica."""
        # Where it fails they run, as if they had been in the engine.
        await self._tell_all("withdraw", batch_id)

    async def wake(self) -> None:
        """Return once a replica answers; this starts an engine that sleeps."""
        async with aclosing(self.run_lines([], [])) as nothing:
            async for _ in nothing:
                pass

    async def doors(self) -> list[Door]:
        """Where the replicas that run take live calls. Raises EngineUnavailableError."""
        return [answer for answer in await self._ask_all("door") if isinstance(answer, Door)]

    async def numbers(self) -> list[ReplicaNumbers]:
        """What the replicas that run have counted. Raises EngineUnavailableError."""
        # Those that an older version has deployed cannot tell.
        answers = await self._ask_all("numbers")
        return [answer for answer in answers if isinstance(answer, ReplicaNumbers)]

    async def know_free(self, replicas: int) -> None:
        """Tell every replica how many of them live calls leave to batches."""
        await self._tell_all("know_free", replicas)

    async def expect_small(self) -> None:
        """Tell every replica that rows of a small batch are on their way to one of them."""
        await self._tell_all("expect_small")

    async def expect(self, replicas: float) -> None:
        """Tell every replica that runs how many of them the batches need.

        Raises EngineUnavailableError.
        """
        await self._ask_all("expect", replicas)

    async def adapters(self) -> set[tuple[str, str]]:
        """Tenant and name of each tenant's adapter in a replica. Raises EngineUnavailableError."""
        answers = await self._ask_all("adapters")
        return {tuple(one) for answer in answers if isinstance(answer, list) for one in answer}

    async def forget_adapters(self, names: Sequence[str]) -> None:
        """Let every replica unload these adapters."""
        await self._tell_all("forget_adapters", list(names))

    async def _ask_all(self, method: str, *what: float) -> list[Any]:
        """What the method of each replica that runs returns, or raises."""
        try:
            state = await asyncio.to_thread(engine_state, self._app_name)
            if state is None or not state.running:
                return []
            answers: list[Any] = (
                await self._connect()
                .broadcast(method, *what)
                .results_async(timeout_s=CHECK_SECONDS, return_exceptions=True)
            )
        # A KeyError: the engine was removed since.
        except (RayServeException, RayError, TimeoutError, KeyError) as error:
            raise EngineUnavailableError(f"{type(error).__name__}: {error}") from error
        return answers

    async def _tell_all(self, method: str, *what: str | int | list[str]) -> None:
        """Call a method of every replica."""
        try:
            answers = self._connect().broadcast(method, *what)
            await answers.results_async(timeout_s=CHECK_SECONDS, return_exceptions=True)
        # A KeyError: the engine was removed since.
        except (RayServeException, RayError, TimeoutError, KeyError) as error:
            log.warning("engine.not_told", method=method, what=what, reason=type(error).__name__)

    def _connect(self) -> Any:
        if self._handle is None:
            handle = serve.get_deployment_handle(DEPLOYMENT, self._app_name)
            self._handle = handle.options(stream=True)
        return self._handle

    async def _next(self, results: AsyncGenerator[Results, None]) -> Results:
        """The next results; none at the end."""
        coming = asyncio.ensure_future(_first(results))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=CHECK_SECONDS)
                if done:
                    return coming.result()
                # Without this, a call would wait forever for a first replica that cannot start.
                if (failure := await self._engine_failure()) is not None:
                    raise EngineFailedError(failure)
                if self._patience_seconds is not None and await self._is_gone():
                    raise EngineUnavailableError("The engine has had no replica for too long.")
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait([coming])

    async def _engine_failure(self) -> str | None:
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now - self._failure_asked_at >= CHECK_SECONDS:
                self._failure = await asyncio.to_thread(engine_failure, self._app_name)
                self._failure_asked_at = now
            return self._failure

    async def _is_gone(self) -> bool:
        """Whether no replica has come, or come back, within `patience_seconds`."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if self._seen_at is None or now - self._state_asked_at > 2 * CHECK_SECONDS:
                # No call was waiting until now.
                self._seen_at = now
            if now - self._state_asked_at >= CHECK_SECONDS:
                state = await asyncio.to_thread(engine_state, self._app_name)
                self._state_asked_at = now
                if state is not None and state.running:
                    self._seen_at = now
            return now - self._seen_at > (self._patience_seconds or 0)

    async def _call(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        response, left = None, len(lines)
        with _in_our_words():
            try:
                response = self._connect().run_lines.remote(list(lines), self._salted(order))
                self._tell_ends(order)
                async for results in response:
                    yield results
                    left -= len(results)
                    if not left:
                        # That the call is over comes with one more message.
                        self._go_on_soon(_drained(response))
                        return
            except (asyncio.CancelledError, GeneratorExit):
                if response is not None:
                    response.cancel()
                raise

    def _tell_ends(self, order: Sequence[Work]) -> None:
        """Tell the other replicas, too, that no more rows of a batch come after these."""
        for work in order:
            if work.ends_batch and work.batch_rows > len(order):
                self._go_on_soon(self._tell_all("complete", work.batch_id))

    def _go_on_soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _salted(self, order: Sequence[Work]) -> list[Work]:
        if self._salts is None:
            return list(order)
        salts = {tenant: self._salts.of(tenant) for tenant in {work.tenant for work in order}}
        return [work._replace(cache_salt=salts[work.tenant]) for work in order]


async def _drained(response: Any) -> None:
    """The end of a call all of whose results have come; however it ends, nobody is told."""
    with suppress(RayError, RayServeException, BatchyardError):
        async for _ in response:
            pass


async def _first(results: AsyncGenerator[Results, None]) -> Results:
    # `anext` with a default fails in a task if an answer is a tuple.
    async for group in results:
        return group
    return ()


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Raise what ended a call in our words: Ray's subclasses of our errors hold a traceback."""
    try:
        yield
    except EngineGoneError as error:
        if (positions := _positions(error)) == []:
            raise EngineUnavailableError("The engine died before it had these lines.") from None
        if isinstance(error, EngineHungError):
            raise EngineHungError("The engine hung with these lines in it.", positions) from None
        raise EngineGoneError("The engine died with these lines in it.", positions) from None
    except EngineYieldsError as error:
        replica: str = _itself(error).replica
        avoid(replica)
        raise EngineYieldsError("People have the engine.", replica) from None
    except EngineUnavailableError:
        raise EngineUnavailableError("The engine is being restarted.") from None
    except (RayActorError, WorkerCrashedError, OutOfMemoryError):
        raise EngineGoneError("The engine's replica died with these lines in it.") from None
    except RayTaskError:
        # A bug in the replica, which no retry would fix.
        raise
    except (RayServeException, RayError) as error:
        raise EngineUnavailableError(f"{type(error).__name__}: {error}") from error


def _itself(error: EngineUnavailableError | EngineGoneError) -> Any:
    """The error as it was raised: Ray's subclass holds it."""
    return getattr(error, "cause", error)


def _positions(error: EngineGoneError) -> list[int] | None:
    positions = getattr(_itself(error), "positions", None)
    return None if positions is None else list(positions)

"""How a lane job talks to its engine: chunks of request lines out, results back, over Ray Serve.

Imports ray and nothing heavier: no vLLM, no torch.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.serve.exceptions import RayServeException

from worker.engine_errors import (
    EngineFailedError,
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    Result,
)
from worker.engine_sizes import ROWS_PER_ENGINE_CALL
from worker.engine_status import DEPLOYMENT, engine_failure, engine_state

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
        rows_per_engine_call: int = ROWS_PER_ENGINE_CALL,
        patience_seconds: float | None = None,
    ) -> None:
        self._app_name = app_name
        self._rows_per_engine_call = rows_per_engine_call
        self._patience_seconds = patience_seconds
        self._handle: Any = None
        #: All calls of this client share one question to Serve's controller at a time.
        self._asking = asyncio.Lock()
        self._failure: str | None = None
        self._failure_asked_at = 0.0
        #: When a replica was last seen, or else when the wait for one began.
        self._seen_at: float | None = None
        self._state_asked_at = 0.0

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        """The results of these lines of an OpenAI batch file, in their order.

        Waits while the engine starts. Raises EngineGoneError, EngineUnavailableError or
        EngineFailedError for all lines together. Cancelling the call aborts its rows in the engine.
        """
        step = self._rows_per_engine_call
        calls = [
            asyncio.create_task(self._call(list(lines[start : start + step])))
            for start in range(0, len(lines), step)
        ]
        try:
            results = await self._wait_for(calls)
        except BaseException:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        return [result for chunk in results for result in chunk]

    async def wake(self) -> None:
        """Return once a replica answers; this starts an engine that sleeps."""
        await self._call([])

    async def _wait_for(self, calls: list[asyncio.Task[list[Result]]]) -> list[list[Result]]:
        waiting = set(calls)
        while waiting:
            _, waiting = await asyncio.wait(
                waiting,
                timeout=CHECK_SECONDS,
                return_when=asyncio.FIRST_EXCEPTION,
            )
            if any(call.done() and call.exception() is not None for call in calls):
                break
            # Without this, a call would wait forever for a first replica that cannot start.
            if waiting and (failure := await self._engine_failure()) is not None:
                raise EngineFailedError(failure)
            if waiting and self._patience_seconds is not None and await self._is_gone():
                raise EngineUnavailableError("The engine has had no replica for too long.")
        return await asyncio.gather(*calls)

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

    async def _call(self, chunk: list[bytes]) -> list[Result]:
        response = None
        try:
            if self._handle is None:
                self._handle = serve.get_deployment_handle(DEPLOYMENT, self._app_name)
            response = self._handle.run_lines.remote(chunk)
            results: list[Result] = await response
        except asyncio.CancelledError:
            if response is not None:
                response.cancel()
            raise
        # Ray raises its own subclasses of our errors, whose text is a traceback.
        except EngineHungError:
            raise EngineHungError("The engine hung with these lines in it.") from None
        except EngineGoneError:
            raise EngineGoneError("The engine died with these lines in it.") from None
        except EngineUnavailableError:
            raise EngineUnavailableError("The engine is being restarted.") from None
        except (RayActorError, WorkerCrashedError, OutOfMemoryError):
            raise EngineGoneError("The engine's replica died with these lines in it.") from None
        except RayTaskError:
            # A bug in the replica, which no retry would fix.
            raise
        except (RayServeException, RayError) as error:
            raise EngineUnavailableError(f"{type(error).__name__}: {error}") from error
        return results

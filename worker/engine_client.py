"""How a lane job talks to its engine: chunks of request lines out, results back, over Ray Serve.

Imports ray and nothing heavier: no vLLM, no torch.
"""

import asyncio
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from shared.catalog import Catalog, Lane
from worker.engine_errors import (
    EngineFailedError,
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    Result,
)
from worker.races import retry_lost

#: Every engine is one Serve deployment of this name in an application of its own.
DEPLOYMENT = "engine"

#: Fewer lines a call cost more calls, more lines a call leave an engine idle at the end of each.
ROWS_PER_ENGINE_CALL = 16

#: vLLM guesses too low for batches when it is not told.
DEFAULT_MAX_NUM_SEQS = 256

#: How often a waiting client asks whether the engine has failed for good, in seconds.
FAILURE_CHECK_SECONDS = 5.0

_REASON_LENGTH = 1000


class EngineClient:
    """The engine of one lane. Belongs to one event loop.

    Calls that find no replica wait for `patience_seconds`, or for as long as one needs to start.
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
        #: When a replica was last seen, or one was first waited for.
        self._runs_at: float | None = None
        self._looked_at = 0.0
        self._handle: Any = None
        self._asking = asyncio.Lock()
        self._asked_at = 0.0
        self._failure: str | None = None

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        """The results of these lines of an OpenAI batch file, in their order.

        Waits for as long as the engine starts. Raises EngineGoneError, EngineUnavailableError or
        EngineFailedError for all lines together. Cancelling the call aborts the rows in the engine.
        """
        step = self._rows_per_engine_call
        calls = [
            asyncio.create_task(self._call(list(lines[start : start + step])))
            for start in range(0, len(lines), step)
        ]
        try:
            results = await self._watch(calls)
        except BaseException:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        return [result for chunk in results for result in chunk]

    async def wake(self) -> None:
        """Return once a replica answers; a sleeping engine is started."""
        await self._call([])

    async def _watch(self, calls: list[asyncio.Task[list[Result]]]) -> list[list[Result]]:
        waiting = set(calls)
        while waiting:
            _, waiting = await asyncio.wait(
                waiting,
                timeout=FAILURE_CHECK_SECONDS,
                return_when=asyncio.FIRST_EXCEPTION,
            )
            if any(call.done() and call.exception() is not None for call in calls):
                break
            # Calls that wait for a first replica wait for ever when none can be started.
            if waiting and (failure := await self._ask_for_failure()) is not None:
                raise EngineFailedError(failure)
            if waiting and self._patience_seconds is not None and await self._is_gone():
                raise EngineUnavailableError("The engine has had no replica for too long.")
        return await asyncio.gather(*calls)

    async def _ask_for_failure(self) -> str | None:
        """The answer is shared by all calls of this client: each question costs the controller."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now - self._asked_at >= FAILURE_CHECK_SECONDS:
                self._failure = await asyncio.to_thread(engine_failure, self._app_name)
                self._asked_at = now
            return self._failure

    async def _is_gone(self) -> bool:
        """Whether a first replica, or the next one, has not come in time."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if self._runs_at is None or now - self._looked_at > 2 * FAILURE_CHECK_SECONDS:
                # Nobody has waited meanwhile.
                self._runs_at = now
            if now - self._looked_at >= FAILURE_CHECK_SECONDS:
                state = await asyncio.to_thread(engine_state, self._app_name)
                self._looked_at = now
                if state is not None and state.running:
                    self._runs_at = now
            return now - self._runs_at > (self._patience_seconds or 0)

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
        except EngineHungError:
            raise EngineHungError(
                "The engine hung with these lines in it, and was killed."
            ) from None
        except EngineGoneError:
            # What arrives is Ray's own subclass, whose text is a traceback.
            raise EngineGoneError("The engine died while these lines were in it.") from None
        except EngineUnavailableError:
            raise EngineUnavailableError("The engine is being restarted.") from None
        except (RayActorError, WorkerCrashedError, OutOfMemoryError):
            raise EngineGoneError("The engine's replica died with these lines in it.") from None
        except RayTaskError:
            # A bug in the replica: no retry would mend it.
            raise
        except (RayServeException, RayError) as error:
            raise EngineUnavailableError(f"{type(error).__name__}: {error}") from error
        return results


def ensure_engine(catalog: Catalog, lane: Lane) -> str:
    """Deploy the lane's engine unless it is there already; the application's name. Blocks.

    Raises EngineFailedError when Ray refuses what the catalog says.
    The deployment itself is made by a Ray task, because what it needs takes ten seconds to import.
    """
    name = catalog.app_name(lane)
    if is_deployed(name) and engine_failure(name) is None and not stale_apps(lane, name):
        return name
    try:
        deployed: str = ray.get(_deploy.remote(catalog.model_dump_json(), lane))
    except RayTaskError as error:
        raise EngineFailedError(_reason(str(error))) from None
    return deployed


@ray.remote(num_cpus=0, max_retries=3)
def _deploy(catalog: str, lane: Lane) -> str:
    # Its parts enter Ray's connectors in the cluster's store: they look first, and then write.
    engine: Any = retry_lost(lambda: importlib.import_module("worker.engine"))
    name: str = engine.deploy(Catalog.model_validate_json(catalog), lane)
    return name


def is_deployed(app_name: str) -> bool:
    """Whether Serve knows an application of exactly this name that is not being deleted."""
    app = serve.status().applications.get(app_name)
    return app is not None and app.status is not ApplicationStatus.DELETING


def stale_apps(lane: Lane, current: str) -> list[str]:
    """Applications of this lane with another fingerprint that are still there."""
    return [
        name
        for name, app in serve.status().applications.items()
        if name.startswith(f"{lane.name}.")
        and name != current
        and app.status is not ApplicationStatus.DELETING
    ]


def engine_failure(app_name: str) -> str | None:
    """Why the engine cannot start, in its own words; None while it works, starts or sleeps.

    Serve gives up after three attempts in a row (a few minutes at most for what fails at once),
    and an engine that has failed stays so until it is deployed again.
    """
    app = serve.status().applications.get(app_name)
    if app is None:
        return None
    engine = app.deployments.get(DEPLOYMENT)
    if engine is not None and engine.status_trigger == "REPLICA_STARTUP_FAILED":
        return _reason(engine.message)
    if app.status is ApplicationStatus.DEPLOY_FAILED:
        return _reason(app.message)
    return None


@dataclass(frozen=True)
class EngineState:
    """The replicas of an engine by what they do, and Serve's remark about them, for reports."""

    running: int
    starting: int
    message: str

    @property
    def target(self) -> int:
        return self.running + self.starting


def engine_state(app_name: str) -> EngineState | None:
    """None when there is no such application."""
    app = serve.status().applications.get(app_name)
    engine = app.deployments.get(DEPLOYMENT) if app else None
    if engine is None:
        return None
    count = {str(state): number for state, number in engine.replica_states.items()}
    waiting = ("PENDING_ALLOCATION", "STARTING", "RECOVERING", "UPDATING")
    return EngineState(
        running=count.get("RUNNING", 0),
        starting=sum(count.get(state, 0) for state in waiting),
        message=_reason(engine.message),
    )


def _reason(message: str) -> str:
    """What the innermost exception said, without the traceback that led there."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message).strip()
    frames = list(re.finditer(r"^\s+(?:File \"|\^+|\~).*$", plain, flags=re.MULTILINE))
    if frames:
        rest = plain[frames[-1].end() :]
        told = re.search(r"^\S.*", rest, flags=re.MULTILINE | re.DOTALL)
        plain = told[0] if told else plain
    plain = re.sub(r"^(?:\w+\.)*\w*(?:Error|Exception): ", "", plain.strip())
    # What pydantic adds for programmers.
    plain = re.sub(r"\s*\[type=\w+, input_value=.*", "", plain, flags=re.DOTALL)
    return plain if len(plain) <= _REASON_LENGTH else plain[:_REASON_LENGTH] + "…"

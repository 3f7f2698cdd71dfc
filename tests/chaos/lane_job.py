"""A lane job as a plain process: the real `LaneJob`, on the made-up engine and without Ray."""

import asyncio
import json
import os
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from shared.catalog import Catalog, Lane
from shared.monitoring import log
from shared.slices import Claim
from tests.chaos.engine import HUNG, READY
from worker import job as worker_job
from worker.connections import opened, read_settings
from worker.engine_errors import (
    EngineFailedError,
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    Result,
)
from worker.slice_runner import BatchWatch, SliceResult, SliceRunner, fetch, settle
from worker.suspect_runner import SuspectRunner

_LIMIT = 64 * 1024 * 1024
_CONNECT_SECONDS = 5.0
#: Much longer than any fault lasts: rows get a strike of what befell the engine, and of no delay.
_CALL_SECONDS = 120.0
_claim: ContextVar[Claim] = ContextVar("claim")


class MadeUpEngineClient:
    """As `worker.engine_client.EngineClient`, over TCP."""

    def __init__(
        self,
        app_name: str,
        *,
        rows_per_engine_call: int,
        patience_seconds: float | None = None,
    ) -> None:
        self._port = int(os.environ["CHAOS_ENGINE_PORT"])

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        claim = _claim.get()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    os.environ["CHAOS_ENGINE_HOST"], self._port, limit=_LIMIT
                )
                is_reached = json.loads(await reader.readline() or "null") == READY
        except (OSError, TimeoutError) as error:
            raise EngineUnavailableError("the engine cannot be reached") from error
        if not is_reached:
            writer.close()
            raise EngineUnavailableError("the engine cannot be reached")
        told = {"batch": claim.batch_id, "index": claim.index, "epoch": claim.epoch}
        call = {"claim": told, "lines": [line.decode() for line in lines]}
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                writer.write(json.dumps(call).encode() + b"\n")
                await writer.drain()
                answer = await reader.readline()
        except (OSError, TimeoutError) as error:
            raise EngineGoneError("the engine was lost with these lines in it") from error
        finally:
            writer.close()
        if not answer.endswith(b"\n"):
            raise EngineGoneError("the engine was lost with these lines in it")
        if (said := json.loads(answer)) == HUNG:
            raise EngineHungError("the engine hung with these lines in it, and was killed")
        return [(status, body.encode()) for status, body in said]


class _Runner(SliceRunner):
    """Lets the engine know under which claim it runs a row."""

    async def run(self, claim: Claim, body: bytes | None) -> SliceResult:
        _claim.set(claim)
        return await super().run(claim, body)


class _SuspectRunner(SuspectRunner):
    """As above: one claim after another."""

    async def run(
        self, claims: Sequence[Claim], bodies: Sequence[bytes | None]
    ) -> list[SliceResult]:
        results = []
        for claim, body in zip(claims, bodies, strict=True):
            _claim.set(claim)
            results += await super().run([claim], [body])
        return results


def _run_wave(
    claims: list[Claim],
    *,
    app_name: str,
    rows_in_engine: int,
    patience_seconds: float | None = None,
) -> None:
    """The steps of `worker.wave`, in this process instead of Ray's."""
    settings = read_settings()

    async def run() -> None:
        async with opened(settings) as (state, storage):
            runner = _Runner(
                MadeUpEngineClient(app_name, rows_per_engine_call=settings.rows_per_engine_call),
                BatchWatch(state),
                rows_in_engine=rows_in_engine,
                rows_per_engine_call=settings.rows_per_engine_call,
            )

            async def one(claim: Claim) -> None:
                result = await runner.run(claim, await fetch(storage, claim))
                await settle(state, storage, claim, result)

            await asyncio.gather(*map(one, claims))

    asyncio.run(run())


def _ensure_engine(catalog: Catalog, lane: Lane) -> str:
    """It starts with every model but one that is nowhere."""
    source = Path(catalog.model(lane.model).source)
    if source.is_absolute() and not source.exists():
        raise EngineFailedError(f"The model's folder {source} does not exist on this machine.")
    return catalog.app_name(lane)


_STAND_INS: dict[str, Any] = {
    "ensure_engine": _ensure_engine,
    "EngineClient": MadeUpEngineClient,
    "SliceRunner": _Runner,
    "SuspectRunner": _SuspectRunner,
    "run_wave": _run_wave,
}


def main(lane: str, job: str, environment: dict[str, str]) -> NoReturn:
    """Be the lane job `job` until it ends."""
    os.environ.update(environment)
    for name, stand_in in _STAND_INS.items():
        setattr(worker_job, name, stand_in)
    settings = read_settings()
    log.configure("lane-job", settings.log_level)
    worker_job.run_lane_job(settings, lane, job)

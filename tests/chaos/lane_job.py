"""A lane job as a plain process: the real `LaneJob`, on the made-up engine and without Ray."""

import asyncio
import json
import os
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from shared import log
from shared.slices import Claim
from worker import job as worker_job
from worker.connections import opened, read_settings
from worker.engine_client import EngineGoneError, EngineUnavailableError, Result
from worker.slice_run import BatchWatch, SliceResult, SliceRunner, fetch, settle

_LIMIT = 64 * 1024 * 1024
_CONNECT_SECONDS = 5.0
_CALL_SECONDS = 20.0
_claim: ContextVar[Claim] = ContextVar("claim")


class MadeUpEngineClient:
    """As `worker.engine_client.EngineClient`, over TCP."""

    def __init__(self, app_name: str, *, rows_per_engine_call: int) -> None:
        self._port = int(os.environ["CHAOS_ENGINE_PORT"])

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        claim = _claim.get()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    os.environ["CHAOS_ENGINE_HOST"], self._port, limit=_LIMIT
                )
        except (OSError, TimeoutError) as error:
            raise EngineUnavailableError("the engine cannot be reached") from error
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
        return [(status, body.encode()) for status, body in json.loads(answer)]


class _Runner(SliceRunner):
    """Lets the engine know under which claim it runs a row."""

    async def run(self, claim: Claim, body: bytes | None) -> SliceResult:
        _claim.set(claim)
        return await super().run(claim, body)


def _run_wave(claims: list[Claim], *, app_name: str, rows_in_engine: int) -> None:
    """The steps of `worker.wave`, in this process instead of Ray's."""
    settings = read_settings()

    async def run() -> None:
        async with opened(settings) as (state, storage):
            runner = _Runner(
                MadeUpEngineClient(app_name, rows_per_engine_call=settings.rows_per_engine_call),  # type: ignore[arg-type]  # it has the one method that is called
                BatchWatch(state),
                rows_in_engine=rows_in_engine,
                rows_per_engine_call=settings.rows_per_engine_call,
            )

            async def one(claim: Claim) -> None:
                result = await runner.run(claim, await fetch(storage, claim))
                await settle(state, storage, claim, result)

            await asyncio.gather(*map(one, claims))

    asyncio.run(run())


_STAND_INS: dict[str, Any] = {
    "ensure_engine": lambda catalog, lane: catalog.app_name(lane),
    "EngineClient": MadeUpEngineClient,
    "SliceRunner": _Runner,
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

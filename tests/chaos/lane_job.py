"""A lane job as a plain process: the real `LaneJob`, on the simulated engine and without Ray."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

from shared.catalog import Lane
from shared.doors import Door
from shared.engines import ReplicaNumbers
from shared.monitoring import log
from shared.ordering.work import Work
from shared.slices import Claim
from tests.chaos.engine import ASK_LIVE, HUNG, READY
from worker.batch_watch import BatchWatch
from worker.block_runner import BlockRunner
from worker.connections import opened, read_settings
from worker.engine_errors import (
    Engine,
    EngineFailedError,
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    Results,
)
from worker.job import run_lane_job
from worker.lane_engines import LaneEngines
from worker.outcomes import SliceResult
from worker.slice_io import SliceInput
from worker.slice_runner import SliceRunner
from worker.suspect_runner import SuspectRunner
from worker.wave_blocks import blocks_at_once, grouped

_LIMIT = 64 * 1024 * 1024
_CONNECT_SECONDS = 5.0
#: Much longer than any fault lasts, so that a delay gives no row a strike.
_CALL_SECONDS = 120.0
_claim: ContextVar[Claim] = ContextVar("claim")


class MadeUpEngineClient:
    """As `worker.engine_client.EngineClient`, over TCP."""

    def __init__(self) -> None:
        self._port = int(os.environ["CHAOS_ENGINE_PORT"])

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        claim = _claim.get()
        reader, writer = await self._connect()
        claim_fields = {"batch": claim.batch_id, "index": claim.index, "epoch": claim.epoch}
        call = {"claim": claim_fields, "lines": [line.decode() for line in lines]}
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
        if (results := json.loads(answer)) == HUNG:
            raise EngineHungError("the engine hung with these lines in it, and was killed")
        yield [
            (position, (status, body.encode())) for position, (status, body) in enumerate(results)
        ]

    async def withdraw(self, batch_id: str) -> None:
        """Nothing waits in front of it."""

    async def doors(self) -> list[Door]:
        """Where it takes live calls. Raises EngineUnavailableError."""
        reader, writer = await self._connect()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                writer.write(json.dumps(ASK_LIVE).encode() + b"\n")
                told = json.loads(await reader.readline() or "null")
        except (OSError, TimeoutError) as error:
            raise EngineUnavailableError("the engine does not answer") from error
        finally:
            writer.close()
        return [Door(**told["door"])] if told and told["door"] else []

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
        return reader, writer


class _Runner(SliceRunner):
    """Sends the engine the claim under which a row runs."""

    async def run(
        self, claim: Claim, given: SliceInput, *, entered: asyncio.Event | None = None
    ) -> SliceResult:
        _claim.set(claim)
        return await super().run(claim, given, entered=entered)


class _SuspectRunner(SuspectRunner):
    """As above, one claim after another."""

    async def run(self, claims: Sequence[Claim], given: Sequence[SliceInput]) -> list[SliceResult]:
        results = []
        for claim, one in zip(claims, given, strict=True):
            _claim.set(claim)
            results += await super().run([claim], [one])
        return results


class MadeUpEngines(LaneEngines):
    """The simulated engine in place of Ray's engines."""

    async def ensure(self, engine: Lane) -> None:
        """Deploy nothing; every model can start, except one whose folder does not exist."""
        source = Path(self._catalog.model(engine.model).source)
        if source.is_absolute() and not source.exists():  # noqa: ASYNC240  # blocks for no time
            raise EngineFailedError(f"The model's folder {source} does not exist on this machine.")

    async def restore(self, engine: Lane) -> bool:
        return False

    async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:
        """It counts nothing."""
        return []

    async def doors(self, engine: Lane) -> list[Door]:
        """One engine has all models."""
        return await MadeUpEngineClient().doors()

    async def wake(self, engine: Lane) -> None:
        """It never sleeps."""

    async def expect_small(self, engine: Lane) -> None:
        """It makes way for nobody."""

    def client(self, engine: Lane) -> Engine:
        return MadeUpEngineClient()

    def slice_runner(self, engine: Lane) -> SliceRunner:
        if engine not in self._slice_runners:
            self._slice_runners[engine] = self._new_slice_runner(self._watch)
        return self._slice_runners[engine]

    def suspect_runner(self, engine: Lane) -> SuspectRunner:
        if engine not in self._suspect_runners:
            self._suspect_runners[engine] = _SuspectRunner(
                MadeUpEngineClient(),
                self._watch,
                rows_in_engine=self._rows_in_engine,
                rows_per_engine_call=self._rows_of_call,
                max_batch_deaths=self._settings.engine_deaths_per_batch,
                max_lane_deaths=self._settings.lane_engine_deaths,
                max_tenant_deaths=self._settings.max_engine_deaths_per_day,
            )
        return self._suspect_runners[engine]

    async def run_wave(self, claims: list[Claim], engine: Lane) -> None:
        """Take the steps of `worker.wave` in a thread of this process instead of Ray's."""
        await asyncio.to_thread(lambda: asyncio.run(self._run_wave(claims)))

    async def _run_wave(self, claims: list[Claim]) -> None:
        async with opened(self._settings) as (state, storage):
            runner = self._new_slice_runner(BatchWatch(state))
            # As many as the mapper of a wave has in its hands; the others wait for it.
            groups = grouped(claims)
            of_mapper = blocks_at_once(groups, self._rows_in_engine)
            blocks = BlockRunner(state, storage, runner, blocks_at_once=of_mapper)
            await asyncio.gather(*map(blocks.run, groups))

    def _new_slice_runner(self, watch: BatchWatch) -> SliceRunner:
        return _Runner(
            MadeUpEngineClient(),
            watch,
            rows_in_engine=self._rows_in_engine,
            rows_per_engine_call=self._rows_of_call,
        )


def main(lane: str, job: str, environment: dict[str, str]) -> NoReturn:
    """Run the lane job `job` until it ends."""
    os.environ.update(environment)
    settings = read_settings()
    log.configure("lane-job", settings.log_level)
    run_lane_job(settings, lane, job, engines_class=MadeUpEngines)

"""Keeps all pipelines going. Only the leader does; a new one reads from S3 how far each is."""

import asyncio
import time

import structlog

from dispatcher.duties import Duties, survive
from dispatcher.pipeline_end import PipelineEnd
from dispatcher.pipeline_run import PipelineRun
from shared.catalog import Catalog
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.pipelines import Closing
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import Additions
from shared.submission.pipelines import (
    Pipeline,
    close_pipeline,
    read_pipeline,
    stored_of,
    to_pipeline,
)
from shared.tenant_slots import TenantSlots

log = structlog.get_logger()

_LOOK_SECONDS = 0.5
#: Pipelines that are worked at a time: each may have a process for its rows.
_SLOTS = 4
#: Then others have their turn.
_STEPS = 20
#: Pipelines that keep a process for their input, or tables in memory, while they wait. One more
#: begins its input anew when it goes on.
_HELD = 8


class PipelineKeeper:
    """Hands on what calls have answered, for every pipeline that has not ended."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        additions: Additions,
        *,
        output_seconds: int,
        held: int = _HELD,
    ) -> None:
        """Of those that wait, `held` keep what they have read."""
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._additions = additions
        self._end = PipelineEnd(state, storage, output_seconds=output_seconds)
        self._held = held
        #: The one that did something last at the end.
        self._runs: dict[str, PipelineRun] = {}
        #: Those at work.
        self._at_work = set[str]()
        self._slots = TenantSlots(_SLOTS)
        self._duties = Duties()

    async def run(self) -> None:
        """Keep them going until cancelled."""
        try:
            while True:
                await survive(self._look, "pipelines")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await self._duties.end()
            for pipeline_id in [*self._runs]:
                await self._leave(pipeline_id)

    async def _look(self) -> None:
        live = await self._state.pipelines.live()
        for record in await self._state.pipelines.many(live):
            self._duties.start(record.id, self._advance, self._slots.taken(record.tenant))
        for pipeline_id in self._runs.keys() - set(live):
            await self._leave(pipeline_id)

    async def _advance(self, pipeline_id: str) -> None:
        self._at_work.add(pipeline_id)
        try:
            run = await self._run(pipeline_id)
            for _ in range(_STEPS):
                [record] = await self._state.pipelines.many([pipeline_id])
                if record.has_ended or not await run.step(record):
                    return
                if self._runs.pop(pipeline_id, None) is run:
                    self._runs[pipeline_id] = run
        except BaseException:
            # What it remembers may not be what S3 has.
            await self._leave(pipeline_id)
            raise
        finally:
            self._at_work.discard(pipeline_id)
            await self._let_go()

    async def _let_go(self) -> None:
        """Let those hold less that did nothing for longest, if too many hold much."""
        waiting = [one for one in self._runs.items() if one[0] not in self._at_work]
        holding = [one for one in waiting if one[1].holds_much]
        for pipeline_id, run in holding[: max(0, len(holding) - self._held)]:
            # It may have begun to work while another one was let go.
            if pipeline_id not in self._at_work:
                await run.close()

    async def _run(self, pipeline_id: str) -> PipelineRun:
        if (known := self._runs.get(pipeline_id)) is not None:
            return known
        run = PipelineRun(
            self._state,
            self._storage,
            self._catalog,
            self._additions,
            self._end,
            await self._pipeline(pipeline_id),
        )
        await run.load()
        self._runs[pipeline_id] = run
        return run

    async def _pipeline(self, pipeline_id: str) -> Pipeline:
        """The pipeline; one whose declaration is damaged in S3 ends, as Redis knows it."""
        try:
            return await read_pipeline(self._storage, pipeline_id)
        except (BrokenObjectError, NotFoundError) as error:
            log.error("pipeline.broken", pipeline_id=pipeline_id, reason=str(error))  # noqa: TRY400  # the reason says it all
            [record] = await self._state.pipelines.many([pipeline_id])
            pipeline = to_pipeline(stored_of(record))
            closing = Closing(int(time.time()), "declaration_lost", str(error))
            await close_pipeline(self._state, self._storage, pipeline, closing, fails=True)
            return pipeline

    async def _leave(self, pipeline_id: str) -> None:
        if (run := self._runs.pop(pipeline_id, None)) is not None:
            await run.close()

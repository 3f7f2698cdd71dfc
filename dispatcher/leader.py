"""All duties of the dispatcher that leads. Each may be repeated, and abandoned at any point."""

import asyncio

from dispatcher.bills import Bills
from dispatcher.duties import repeat
from dispatcher.early_files import EarlyOutputs
from dispatcher.engine_watch import EngineWatch
from dispatcher.job_records import JobRecords
from dispatcher.pipelines import PipelineKeeper
from dispatcher.predictions import Predictions
from dispatcher.reaper import Reaper
from dispatcher.rounds import Rounds
from dispatcher.webhooks import Deliverer
from dispatcher.windows import Windows
from shared.tasks import end

#: How often Ray is asked about its engines, which bounds what is not known of their seconds.
_LOOK_SECONDS = 2

#: How often the ends of batches are foreseen.
_FORESEE_SECONDS = 2


class Leader:
    """Does the duties while it leads."""

    def __init__(
        self,
        *,
        rounds: Rounds,
        windows: Windows,
        reaper: Reaper,
        deliverer: Deliverer,
        predictions: Predictions,
        job_records: JobRecords | None = None,
        engine_watch: EngineWatch | None = None,
        bills: Bills | None = None,
        pipelines: PipelineKeeper | None = None,
        early_files: EarlyOutputs | None = None,
    ) -> None:
        """Without `job_records`, Ray keeps them; without `engine_watch`, nobody sees engines.

        Without `bills`, nobody writes any; without `pipelines`, nobody hands on any rows; without
        `early_files`, every output file is made after its batch's last row.
        """
        self._rounds = rounds
        self._windows = windows
        self._reaper = reaper
        self._deliverer = deliverer
        self._predictions = predictions
        self._job_records = job_records
        self._engine_watch = engine_watch
        self._bills = bills
        self._pipelines = pipelines
        self._early_files = early_files
        #: Whether the duties are under way.
        self.leads = False

    async def lead(self) -> None:
        """Do all duties until cancelled. Raises TransientError when Redis is lost."""
        ray = [] if self._job_records is None else [self._job_records.forget]
        engines = [] if self._engine_watch is None else [self._engine_watch.look]
        bills = [] if self._bills is None else [self._bills.write]
        pipelines = [] if self._pipelines is None else [self._pipelines.run()]
        early_files = [] if self._early_files is None else [self._early_files.run()]
        duties = [
            asyncio.create_task(duty)
            for duty in (
                self._rounds.run(),
                *pipelines,
                *early_files,
                # These two return only when Redis is lost.
                repeat(self._windows.watch, every_seconds=1),
                repeat(self._deliverer.deliver, every_seconds=1),
                repeat(self._predictions.look, every_seconds=_FORESEE_SECONDS),
                repeat(self._reaper.release_claims, every_seconds=1),
                repeat(self._reaper.expire, every_seconds=5),
                repeat(self._reaper.sweep, every_seconds=5),
                repeat(self._reaper.let_leave, every_seconds=10),
                repeat(self._reaper.find_ended, every_seconds=3600),
                repeat(self._reaper.forget, every_seconds=60),
                repeat(self._reaper.sweep_abandoned, every_seconds=3600),
                *(repeat(duty, every_seconds=3600) for duty in (*ray, *bills)),
                *(repeat(duty, every_seconds=_LOOK_SECONDS) for duty in engines),
            )
        ]
        self.leads = True
        try:
            await asyncio.gather(*duties)
        finally:
            self.leads = False
            await end(*duties)

"""The dispatcher as one process: intake always, everything else only while it leads."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from functools import partial

import structlog

from dispatcher import health
from dispatcher.cluster import Cluster
from dispatcher.finaliser import Finaliser
from dispatcher.inputs import Inputs
from dispatcher.intake import Intake
from dispatcher.lanes import ENTRYPOINT, LaneKeeper
from dispatcher.planning import Planner
from dispatcher.reaper import Reaper
from dispatcher.replay import Replay
from dispatcher.sender import Sender
from dispatcher.settings import DispatcherSettings
from dispatcher.slicing import SliceLimits
from dispatcher.webhooks import Deliverer
from dispatcher.windows import Windows
from shared.bus.connection import Bus
from shared.bus.event_messages import EventMessages
from shared.bus.relay import Relay
from shared.catalog import catalog_digest, load_catalog
from shared.errors import TransientError
from shared.lifecycle import Status
from shared.outbound import Guard
from shared.settings import open_storage
from shared.state import Quota, State
from shared.storage import Storage
from shared.submission.admission import NewBatchQuota
from shared.tasks import end

log = structlog.get_logger()

#: Everything is looked at this often even if no bell rings.
_SWEEP_SECONDS = 1.0
#: Bells may ring thousands of times a second; rounds do not.
_PAUSE_SECONDS = 0.03
_AT_ONCE = 12
#: For one lookup of an object that a tenant names.
_LOOKUP_SECONDS = 5.0
#: Before a duty that failed is tried again: an outage is over for all of them in one moment.
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_OUTAGE_PAUSE_SECONDS = 4.0


class Dispatcher:
    """Rounds over all that waits, woken by bells; every duty is safe to repeat and to abandon."""

    def __init__(
        self,
        state: State,
        *,
        planner: Planner,
        finaliser: Finaliser,
        lanes: LaneKeeper,
        windows: Windows,
        reaper: Reaper,
        deliverer: Deliverer,
    ) -> None:
        self._state = state
        self._planner = planner
        self._finaliser = finaliser
        self._lanes = lanes
        self._windows = windows
        self._reaper = reaper
        self._deliverer = deliverer
        # Apart: what is finished must not keep waiting what the engines could run.
        self._planning = asyncio.Semaphore(_AT_ONCE)
        self._finishing = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failures: defaultdict[str, int] = defaultdict(int)
        #: Whether the duties are under way.
        self.leads = False

    async def lead(self) -> None:
        """Do all duties until cancelled."""
        duties = [
            asyncio.create_task(self._rounds()),
            asyncio.create_task(self._periodically(self._reaper.release_claims, 1.0)),
            asyncio.create_task(self._periodically(self._reaper.expire, 5.0)),
            asyncio.create_task(self._periodically(self._reaper.sweep, 5.0)),
            asyncio.create_task(self._periodically(self._reaper.forget, 60.0)),
            asyncio.create_task(self._periodically(self._reaper.sweep_abandoned, 3600.0)),
            # These two end by losing Redis only.
            asyncio.create_task(self._periodically(self._windows.watch, 1.0)),
            asyncio.create_task(self._periodically(self._deliverer.deliver, 1.0)),
        ]
        self.leads = True
        try:
            # They end by losing Redis only; whoever leads then begins again.
            await asyncio.gather(*duties)
        finally:
            self.leads = False
            await end(*duties, *self._running.values())
            # One that had not begun could not take itself off.
            self._running.clear()

    async def _rounds(self) -> None:
        async with self._state.bells("dispatcher") as bells:
            while True:
                if await _survive(self._round, "round") is not None:
                    await asyncio.sleep(1)
                await asyncio.sleep(_PAUSE_SECONDS)
                await _survive(lambda: bells.wait(_SWEEP_SECONDS), "bell")

    async def _round(self) -> None:
        for batch_id in await self._state.batches.in_status(Status.VALIDATING):
            self._start(batch_id, self._planner.plan, self._planning)
        for status in (Status.FINALIZING, Status.CANCELLING):
            for batch_id in await self._state.batches.in_status(status):
                self._start(batch_id, self._finaliser.finish, self._finishing)
        for lane in await self._state.lanes.names():
            await _survive(partial(self._lanes.feed, lane), "feed", of=lane)
            # On its own: while Ray does not answer, batches are planned, fed and finished.
            self._start(lane, self._lanes.keep, nullcontext())

    def _start(
        self,
        name: str,
        duty: Callable[[str], Awaitable[None]],
        slots: AbstractAsyncContextManager[object],
    ) -> None:
        """Run a duty for a batch or lane unless one is under way; one that failed must wait."""
        if name in self._running:
            return

        async def run() -> None:
            try:
                async with slots:
                    error = await _survive(partial(duty, name), duty.__name__, of=name)
                if error is None:
                    self._failures.pop(name, None)
                else:
                    self._failures[name] += 1
                    await asyncio.sleep(pause_seconds(error, self._failures[name]))
            finally:
                del self._running[name]

        self._running[name] = asyncio.create_task(run())

    async def _periodically(self, duty: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await _survive(duty, duty.__name__)
            await asyncio.sleep(seconds)


def pause_seconds(error: Exception, failures: int) -> float:
    """How long a duty waits that failed so many times in a row, the last time with `error`."""
    is_outage = isinstance(error, TransientError)
    longest = _LONGEST_OUTAGE_PAUSE_SECONDS if is_outage else _LONGEST_PAUSE_SECONDS
    return float(min(longest, 2.0**failures))


async def _survive(
    duty: Callable[[], Awaitable[object]], what: str, **fields: str
) -> Exception | None:
    """Run a duty; whatever goes wrong is logged and returned."""
    try:
        await duty()
    except TransientError as error:
        log.warning("dispatcher.duty_broke", duty=what, reason=str(error), **fields)
        return error
    except Exception as error:  # the loops must outlive a bug: other batches depend on them
        log.exception("dispatcher.duty_broke", duty=what, **fields)
        return error
    return None


async def run(settings: DispatcherSettings, stopping: asyncio.Event) -> None:
    """Run the dispatcher until `stopping`. Raises SetupError when a service is unfit."""
    catalog = load_catalog(settings.catalog)
    holder = secrets.token_hex(8)
    async with AsyncExitStack() as stack:
        state = State(settings.redis_url.get_secret_value())
        stack.push_async_callback(state.close)
        storage = open_storage(settings)
        stack.callback(storage.close)
        await storage.prepare()
        if settings.tag_results:
            await storage.require_tags()
        # With threads of its own and little patience: what tenants name may be slow.
        lookups = open_storage(settings, patience_seconds=_LOOKUP_SECONDS, attempts=1)
        stack.callback(lookups.close)
        bus = Bus(settings.amqp_url.get_secret_value())
        stack.push_async_callback(bus.close)
        await bus.connect(declares=settings.declare_topology)
        cluster = Cluster(settings.ray_address, settings.ray_token.get_secret_value())
        stack.push_async_callback(cluster.close)
        guard = Guard(settings.webhook_networks)
        stack.callback(guard.close)
        sender = Sender(guard, timeout_seconds=settings.webhook_timeout_seconds)
        stack.push_async_callback(sender.close)
        event_messages = _event_messages(settings, storage, stack)
        planner = Planner(
            state,
            storage,
            catalog,
            slice_limits=SliceLimits(settings.rows_per_slice, settings.tokens_per_slice),
            max_rows=settings.max_rows_per_batch,
            max_embedding_inputs=settings.max_embedding_inputs,
            max_input_bytes=settings.max_input_bytes,
            quota=Quota(settings.max_enqueued_requests, settings.max_enqueued_tokens),
            mixed_batches=settings.mixed_batches,
        )
        intake = Intake(
            state,
            storage,
            bus,
            service_user=settings.service_user,
            inputs=Inputs(
                state,
                lookups,
                tenant_prefix=settings.tenant_prefix,
                places=settings.input_places,
                max_bytes=settings.max_input_bytes,
                file_seconds=settings.file_seconds,
            ),
            quota=NewBatchQuota.of(settings, catalog),
            replay=Replay(state, bus, event_messages),
            planner=planner,
        )
        dispatcher = Dispatcher(
            state,
            planner=planner,
            finaliser=Finaliser(
                state,
                storage,
                output_seconds=settings.output_seconds,
                tag_results=settings.tag_results,
            ),
            lanes=LaneKeeper(
                state,
                storage,
                cluster,
                ready_rows=settings.ready_rows,
                silence_seconds=settings.lane_job_silence_seconds,
                attempts=settings.lane_job_attempts,
                entrypoint=f"{ENTRYPOINT} --catalog {catalog_digest(settings.catalog)}",
            ),
            windows=Windows(state),
            reaper=Reaper(state, storage, batch_seconds=settings.batch_seconds),
            deliverer=Deliverer(
                state,
                sender,
                timeout_seconds=settings.webhook_timeout_seconds,
                attempts=settings.webhook_attempts,
                attempts_per_endpoint=settings.webhook_attempts_per_endpoint,
            ),
        )
        relay = Relay(
            state,
            bus,
            "events",
            holder=holder,
            service_user=settings.service_user,
            messages=event_messages,
            lease_seconds=settings.lease_seconds,
            progress_seconds=settings.progress_seconds,
        )
        replies = Relay(
            state,
            bus,
            "replies",
            holder=holder,
            service_user=settings.service_user,
            lease_seconds=settings.lease_seconds,
        )
        await bus.consume(intake.take, prefetch=settings.messages_in_hand)
        if settings.health_port is not None:
            others = {"s3": storage.ping, "ray": cluster.ping}
            ready, metrics = health.look(state, bus, lambda: dispatcher.leads, others=others)
            token = settings.metrics_token
            await stack.enter_async_context(
                health.serving(
                    settings.health_host,
                    settings.health_port,
                    ready=ready,
                    metrics=metrics,
                    token=None if token is None else token.get_secret_value(),
                )
            )
        log.info("dispatcher.ready")
        relaying = asyncio.create_task(relay.run())
        replying = asyncio.create_task(replies.run())
        leading = asyncio.create_task(
            _lead(state, dispatcher, holder, seconds=settings.lease_seconds)
        )
        stopped = asyncio.create_task(stopping.wait())
        tasks = (relaying, replying, leading, stopped)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await end(*tasks, patience_seconds=3)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


def _event_messages(
    settings: DispatcherSettings, storage: Storage, stack: AsyncExitStack
) -> EventMessages:
    signer = None
    if settings.event_url_seconds:
        signer = open_storage(settings, endpoint=settings.event_url_endpoint)
        stack.callback(signer.close)
    return EventMessages(
        storage=storage,
        signer=signer,
        url_seconds=settings.event_url_seconds,
        binary_tenants=settings.binary_event_tenants,
        content_bytes=settings.event_results_bytes,
    )


async def _lead(state: State, dispatcher: Dispatcher, holder: str, *, seconds: float) -> None:
    """Hold the leader's lease while it can be held, and do the duties meanwhile.

    The duties are compare-and-set in Redis and create-only in S3, so a leader that was frozen for
    longer than its lease does no harm in the moment before it notices.
    """
    lease = state.lease("dispatcher", holder, seconds=seconds)
    duties: asyncio.Task[None] | None = None
    try:
        while True:
            is_leader = False
            try:
                is_leader = await asyncio.wait_for(lease.hold(), seconds / 2) > 0
            except Exception as error:  # noqa: BLE001  # without Redis nobody leads
                log.warning("dispatcher.lease_unknown", reason=str(error))
            if duties is not None and duties.done():
                log.warning("dispatcher.duties_ended", reason=str(duties.exception()))
                duties = None
            if is_leader and duties is None:
                log.info("dispatcher.leads")
                duties = asyncio.create_task(dispatcher.lead())
            elif not is_leader and duties is not None:
                log.warning("dispatcher.follows")
                await end(duties)
                duties = None
            await asyncio.sleep(seconds / 4)
    finally:
        if duties is not None:
            await end(duties)
        # It ends by itself as well.
        with suppress(TransientError):
            await asyncio.shield(lease.let_go())

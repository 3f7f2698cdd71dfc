"""The dispatcher as one process: it takes messages and relays, and does the duties if elected."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import structlog

from dispatcher import health
from dispatcher.bills import Bills
from dispatcher.cluster import Cluster
from dispatcher.datasets import DatasetInputs
from dispatcher.early_process import EarlyProcess
from dispatcher.election import Election
from dispatcher.engine_watch import EngineWatch
from dispatcher.finaliser import Finaliser
from dispatcher.hurry import Hurry
from dispatcher.inputs import Inputs
from dispatcher.intake import Intake
from dispatcher.job_records import JobRecords
from dispatcher.lanes import ENTRYPOINT, LaneKeeper
from dispatcher.leader import Leader
from dispatcher.memory import memory_limit, messages_within
from dispatcher.open_inputs import OpenInputs
from dispatcher.pipelines import PipelineKeeper
from dispatcher.planning import Planner
from dispatcher.predictions import Predictions
from dispatcher.reaper import Reaper
from dispatcher.remaker import Remaker
from dispatcher.replay import Replay
from dispatcher.rounds import Rounds
from dispatcher.row_cache import CacheLimits, RowCache
from dispatcher.row_span import SpanLimits
from dispatcher.sender import Sender
from dispatcher.settings import DispatcherSettings
from dispatcher.webhooks import Deliverer
from dispatcher.windows import Windows
from shared.bus.connection import Bus
from shared.bus.event_messages import EventMessages
from shared.bus.relay import Relay
from shared.catalog import Catalog
from shared.catalog_file import catalog_digest, load_catalog
from shared.input.validation import Limits
from shared.ledger.batch_records import read_from
from shared.monitoring.trail import Trail
from shared.outbound import Guard
from shared.settings import open_storage
from shared.slicing import SliceLimits
from shared.state import Quota, State
from shared.storage import Storage
from shared.submission.additions import Additions
from shared.submission.admission import NewBatchQuota
from shared.tasks import end

log = structlog.get_logger()

#: Seconds for one lookup of an object that a tenant names.
_LOOKUP_SECONDS = 5.0
#: Seconds for everything to end after a signal, before it is cancelled again.
_STOP_SECONDS = 3.0


async def run(settings: DispatcherSettings, stopping: asyncio.Event) -> None:
    """Run the dispatcher until `stopping`. Raises SetupError when a service is unfit."""
    catalog = load_catalog(settings.catalog)
    for model in catalog.trusting():
        log.warning("catalog.trusts_remote_code", model=model)
    async with _connected(settings) as services:
        dispatcher = build_dispatcher(settings, catalog, services)
        prefetch = messages_within(settings.messages_in_hand, memory_limit())
        if prefetch < settings.messages_in_hand:
            log.warning("intake.holds_less", messages=prefetch, wanted=settings.messages_in_hand)
        await services.bus.consume(dispatcher.intake.take, prefetch=prefetch)
        async with _health_port(settings, services, dispatcher.leader):
            log.info("dispatcher.ready")
            await _until_first_ends(
                *(relay.run() for relay in dispatcher.relays),
                dispatcher.election.run(),
                stopping.wait(),
            )


@dataclass(frozen=True)
class Services:
    """The connections of the process to other services."""

    state: State
    storage: Storage
    #: For objects that tenants name. They may be slow, so it has its own threads and time limit.
    lookups: Storage
    #: Signs URLs for subscribers; None if the deployment gives none.
    signer: Storage | None
    bus: Bus
    cluster: Cluster
    sender: Sender


@dataclass(frozen=True)
class Dispatcher:
    """The running parts of the process."""

    intake: Intake
    relays: tuple[Relay, ...]
    leader: Leader
    election: Election


def build_dispatcher(
    settings: DispatcherSettings, catalog: Catalog, services: Services
) -> Dispatcher:
    """Wire everything up; nothing runs yet."""
    state, storage, bus = services.state, services.storage, services.bus
    holder = secrets.token_hex(8)
    messages = EventMessages(
        storage=storage,
        signer=services.signer,
        url_seconds=settings.event_url_seconds,
        binary_tenants=settings.binary_event_tenants,
        content_bytes=settings.event_results_bytes,
    )
    cache = RowCache(
        state, storage, catalog, CacheLimits(settings.cache_seconds, settings.max_cached_rows)
    )
    slice_limits = SliceLimits(settings.rows_per_slice, settings.tokens_per_slice)
    planner = Planner(
        state,
        storage,
        catalog,
        slice_limits=slice_limits,
        max_rows=settings.max_rows_per_batch,
        max_embedding_inputs=settings.max_embedding_inputs,
        max_custom_id_characters=settings.max_custom_id_characters,
        max_input_bytes=settings.max_input_bytes,
        quota=Quota(settings.max_enqueued_requests, settings.max_enqueued_tokens),
        mixed_batches=settings.mixed_batches,
        strict_input=settings.strict_input,
        spans=SpanLimits() if settings.group_by_prefix else None,
        weights=settings.tenant_weights,
        places=settings.places,
        datasets=DatasetInputs(
            state,
            storage,
            max_rows=settings.max_dataset_rows,
            max_bytes=settings.max_dataset_bytes,
            file_seconds=settings.file_seconds,
            stored_bytes=settings.max_stored_bytes,
        ),
        cache=cache,
    )
    inputs = Inputs(
        state,
        services.lookups,
        places=settings.places,
        table_places=settings.table_places,
        max_bytes=settings.max_input_bytes,
        file_seconds=settings.file_seconds,
    )
    quota = NewBatchQuota.of(settings, catalog)
    # One for both, so that additions to one batch take turns.
    additions = Additions(
        state,
        storage,
        catalog,
        limits=Limits(
            settings.max_rows_per_batch,
            settings.max_embedding_inputs,
            custom_id_characters=settings.max_custom_id_characters,
        ),
        slice_limits=slice_limits,
        max_input_bytes=settings.max_input_bytes,
        quota=quota,
        places=settings.places,
        answers=cache,
    )
    intake = Intake(
        state,
        storage,
        bus,
        service_user=settings.service_user,
        inputs=inputs,
        quota=quota,
        additions=additions,
        replay=Replay(state, bus, messages),
        trail=Trail(settings.trail_file),
        planner=planner,
        cache_seconds=settings.cache_seconds,
    )
    leader = _build_leader(settings, catalog, services, planner, cache, additions)
    lease = state.lease("dispatcher", holder, seconds=settings.lease_seconds)
    return Dispatcher(
        intake=intake,
        relays=_build_relays(settings, services, holder, messages),
        leader=leader,
        election=Election(lease, leader.lead),
    )


def _build_leader(
    settings: DispatcherSettings,
    catalog: Catalog,
    services: Services,
    planner: Planner,
    cache: RowCache,
    additions: Additions,
) -> Leader:
    state, storage = services.state, services.storage
    hurry = Hurry()
    early_files = EarlyProcess(state, hurry)
    finaliser = Finaliser(
        state,
        storage,
        output_seconds=settings.output_seconds,
        tag_results=settings.tag_results,
        keep_parts=settings.keep_parts,
        open_inputs=OpenInputs(state, storage, file_seconds=settings.file_seconds),
        cache=cache,
        early_files=early_files,
    )
    lanes = LaneKeeper(
        state,
        storage,
        services.cluster,
        ready_rows=settings.ready_rows,
        silence_seconds=settings.lane_job_silence_seconds,
        attempts=settings.lane_job_attempts,
        given_weights=settings.tenant_weights,
        engine_deaths_per_day=settings.max_engine_deaths_per_day,
        entrypoint=f"{ENTRYPOINT} --catalog {catalog_digest(settings.catalog)}",
        live_lanes=catalog.live_lanes(),
    )
    return Leader(
        rounds=Rounds(
            state,
            planner=planner,
            finaliser=finaliser,
            remaker=Remaker(state, storage),
            lanes=lanes,
            hurry=hurry,
        ),
        windows=Windows(state, storage),
        reaper=Reaper(
            state,
            storage,
            batch_seconds=settings.batch_seconds,
            ended_seconds=settings.ended_seconds,
        ),
        deliverer=Deliverer(
            state,
            services.sender,
            timeout_seconds=settings.webhook_timeout_seconds,
            attempts=settings.webhook_attempts,
            attempts_per_endpoint=settings.webhook_attempts_per_endpoint,
        ),
        predictions=Predictions(state, settings.tenant_weights),
        job_records=JobRecords(services.cluster),
        engine_watch=EngineWatch(state, services.cluster, catalog),
        pipelines=PipelineKeeper(
            state, storage, catalog, additions, output_seconds=settings.output_seconds
        ),
        early_files=early_files,
        bills=None if settings.bills == "none" else Bills(state, storage, catalog, settings.bills),
    )


def _build_relays(
    settings: DispatcherSettings, services: Services, holder: str, messages: EventMessages
) -> tuple[Relay, ...]:
    state, bus = services.state, services.bus
    user, seconds = settings.service_user, settings.lease_seconds
    events = Relay(
        state,
        bus,
        "events",
        holder=holder,
        service_user=user,
        messages=messages,
        lease_seconds=seconds,
        progress_seconds=settings.progress_seconds,
    )
    replies = Relay(state, bus, "replies", holder=holder, service_user=user, lease_seconds=seconds)
    return events, replies


@asynccontextmanager
async def _connected(settings: DispatcherSettings) -> AsyncIterator[Services]:
    """The services, checked. Raises SetupError when one is unfit."""
    async with AsyncExitStack() as stack:

        def storage(**changes: Any) -> Storage:
            opened = open_storage(settings, **changes)
            stack.callback(opened.close)
            return opened

        state = State(settings.redis_url.get_secret_value())
        stack.push_async_callback(state.close)
        # The bus closes before these, because its messages need them.
        bucket = storage()
        read_from(state, bucket)
        lookups = storage(patience_seconds=_LOOKUP_SECONDS, attempts=1)
        is_signing = settings.event_url_seconds > 0
        signer = storage(endpoint=settings.event_url_endpoint) if is_signing else None
        bus = Bus(settings.amqp_url.get_secret_value())
        stack.push_async_callback(bus.close)
        cluster = Cluster(settings.ray_address, settings.ray_token.get_secret_value())
        stack.push_async_callback(cluster.close)
        guard = Guard(settings.webhook_networks)
        stack.callback(guard.close)
        sender = Sender(guard, timeout_seconds=settings.webhook_timeout_seconds)
        stack.push_async_callback(sender.close)
        await bucket.prepare()
        await bucket.make_readable()
        if settings.tag_results:
            await bucket.require_tags()
        await bus.connect(declares=settings.declare_topology)
        yield Services(state, bucket, lookups, signer, bus, cluster, sender)


def _health_port(
    settings: DispatcherSettings, services: Services, leader: Leader
) -> AbstractAsyncContextManager[object]:
    if settings.health_port is None:
        return nullcontext()
    ready, metrics = health.reports(
        services.state,
        services.bus,
        lambda: leader.leads,
        others={"s3": services.storage.ping, "ray": services.cluster.ping},
    )
    token = settings.metrics_token
    return health.serving(
        settings.health_host,
        settings.health_port,
        ready=ready,
        metrics=metrics,
        token=None if token is None else token.get_secret_value(),
    )


async def _until_first_ends(*works: Awaitable[object]) -> None:
    """Run all until one ends, and end the others. Raises what any of them raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await end(*tasks, patience_seconds=_STOP_SECONDS)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

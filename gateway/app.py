"""The gateway's wiring, in one function."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import stamina
import structlog
from fastapi import FastAPI

from gateway import (
    admin,
    batch_controls,
    batches,
    cache,
    errors,
    events,
    explain,
    files,
    health,
    live,
    metrics,
    models,
    open_batches,
    openapi,
    organization,
    pipelines,
    results,
    retry,
    tenant_limits,
    uploads,
    webhook_deliveries,
    webhooks,
)
from gateway.access import Access
from gateway.creations import Creations
from gateway.dependencies import Services
from gateway.dry_run import DryRuns
from gateway.live_client import LiveClient
from gateway.live_doors import LiveDoors
from gateway.live_media import LiveMedia
from gateway.live_messages import LiveMessages
from gateway.live_request import LiveModels
from gateway.memory import Memory
from gateway.open_streams import OpenStreams
from gateway.settings import GatewaySettings
from gateway.traces import Traced
from gateway.ui import routes as ui
from gateway.ui.feed import Feed
from gateway.watchers import Watchers
from shared.bus.connection import Bus
from shared.bus.relay import Relay
from shared.catalog_file import load_catalog
from shared.errors import TransientError
from shared.input.validation import Limits
from shared.ledger.batch_records import read_from
from shared.monitoring.metrics import Calls
from shared.monitoring.trail import Trail
from shared.outbound import Guard
from shared.settings import open_storage
from shared.slicing import SliceLimits
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import Additions
from shared.submission.admission import NewBatchQuota
from shared.tasks import end

log = structlog.get_logger()

#: Seconds for the services to start, when the whole fleet starts at once.
_START_PATIENCE = 60.0


def build_app(settings: GatewaySettings) -> FastAPI:
    """The whole gateway. It connects to nothing before it starts.

    Raises CatalogError. Its start raises SetupError, and TransientError if a service is down.
    """
    catalog = load_catalog(settings.catalog)
    catalog_changed_at = int(settings.catalog.stat().st_mtime)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[dict[str, Services]]:
        patience = settings.patience_seconds
        state = State(settings.redis_url.get_secret_value(), patience_seconds=patience)
        storage = open_storage(settings, patience_seconds=patience)
        bus = Bus(settings.amqp_url.get_secret_value())
        guard, media_guard = Guard(settings.webhook_networks), Guard(settings.media_networks)
        watchers = Watchers(state, heartbeat_seconds=settings.heartbeat_seconds)
        feed = Feed(state, heartbeat_seconds=settings.heartbeat_seconds)
        app.state.streams = (watchers, feed)
        open_streams = OpenStreams(state.streams, "event_streams")
        downloads = OpenStreams(state.downloads, "downloads")
        live_calls = OpenStreams(state.live_calls.open, "live_calls")
        live_client = LiveClient()
        creations = Creations(state, storage, patience_seconds=patience)
        try:
            await _connect(state, storage, bus, declares=settings.declare_topology)
            relaying = asyncio.create_task(_relay(state, bus, settings).run())
            limits = Limits(
                settings.max_rows_per_batch,
                settings.max_embedding_inputs,
                custom_id_characters=settings.max_custom_id_characters,
            )
            quota = NewBatchQuota.of(settings, catalog)
            services = Services(
                settings,
                catalog,
                catalog_changed_at,
                quota,
                state,
                storage,
                bus,
                relaying,
                guard,
                creations,
                DryRuns(
                    state,
                    storage,
                    catalog,
                    limits,
                    mixed_batches=settings.mixed_batches,
                    strict_input=settings.strict_input,
                    places=settings.places,
                    max_dataset_rows=settings.max_dataset_rows,
                    weights=settings.tenant_weights,
                ),
                Additions(
                    state,
                    storage,
                    catalog,
                    limits=limits,
                    slice_limits=SliceLimits(settings.rows_per_slice, settings.tokens_per_slice),
                    max_input_bytes=settings.max_input_bytes,
                    quota=quota,
                    places=settings.places,
                ),
                watchers,
                open_streams,
                downloads,
                live_calls,
                LiveModels.of(catalog, settings.places),
                LiveDoors(state),
                live_client,
                LiveMedia(
                    storage,
                    media_guard,
                    timeout_seconds=settings.media_seconds,
                    max_bytes=settings.media_memory_bytes,
                ),
                Memory(settings.upload_memory_bytes, "another upload"),
                feed,
            )
            async with LiveMessages(services).answered():
                yield {"services": services}
            # A lease that cannot be released ends by itself.
            await end(relaying)
        finally:
            guard.close()
            media_guard.close()
            for streams in (watchers, feed, open_streams, downloads, live_calls):
                await streams.end()
            await live_client.close()
            await creations.end()
            await bus.close()
            storage.close()
            await state.close()

    app = FastAPI(
        title="Batchyard",
        version=version("batchyard"),
        lifespan=running,
        # The pages would load scripts from elsewhere, and the document needs a key.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
    )
    for module in (
        files,
        uploads,
        batches,
        events,
        results,
        retry,
        batch_controls,
        open_batches,
        cache,
        pipelines,
        explain,
        models,
        tenant_limits,
        webhooks,
        webhook_deliveries,
        admin,
        organization,
    ):
        app.include_router(module.router, prefix="/v1")
    app.include_router(live.router)
    app.include_router(health.router)
    app.include_router(ui.router, include_in_schema=False)
    app.add_middleware(Access, trail=Trail(settings.trail_file), sample=settings.access_log_sample)
    if settings.metrics_token is not None:
        calls = Calls()
        app.include_router(metrics.router(calls, settings.metrics_token.get_secret_value()))
        app.add_middleware(metrics.Counting, calls=calls)
    app.add_middleware(Traced)
    errors.install(app)
    openapi.install(app, settings)
    return app


def end_streams(app: FastAPI) -> None:
    """End the event streams, which would otherwise last as long as their batches."""
    for streams in getattr(app.state, "streams", ()):
        streams.close()


async def _connect(state: State, storage: Storage, bus: Bus, *, declares: bool) -> None:
    async for attempt in stamina.retry_context(
        on=TransientError, attempts=None, timeout=_START_PATIENCE, wait_max=2
    ):
        with attempt:
            await state.ping()
            await storage.prepare()
            read_from(state, storage)
            await bus.connect(declares=declares)


def _relay(state: State, bus: Bus, settings: GatewaySettings) -> Relay:
    return Relay(
        state,
        bus,
        "submissions",
        holder=f"gateway:{socket.gethostname()}:{os.getpid()}",
        service_user=settings.service_user,
        lease_seconds=settings.lease_seconds,
    )

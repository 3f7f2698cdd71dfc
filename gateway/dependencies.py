"""What every route may use: the adapters that `build_app` made, and the settings."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from gateway.creations import Creations
from gateway.dry_run import DryRuns
from gateway.live_client import LiveClient
from gateway.live_doors import LiveDoors
from gateway.live_media import LiveMedia
from gateway.live_request import LiveModels
from gateway.memory import Memory
from gateway.open_streams import OpenStreams
from gateway.settings import GatewaySettings
from gateway.ui.feed import Feed
from gateway.watchers import Watchers
from shared.bus.connection import Bus
from shared.catalog import Catalog
from shared.outbound import Guard
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import Additions
from shared.submission.admission import NewBatchQuota


@dataclass(frozen=True)
class Services:
    """One of each for the whole process."""

    settings: GatewaySettings
    catalog: Catalog
    #: Unix seconds; all models are shown as of then.
    catalog_changed_at: int
    quota: NewBatchQuota
    state: State
    storage: Storage
    bus: Bus
    relaying: asyncio.Task[None]
    guard: Guard
    creations: Creations
    dry_runs: DryRuns
    additions: Additions
    watchers: Watchers
    open_streams: OpenStreams
    downloads: OpenStreams
    live_calls: OpenStreams
    live_models: LiveModels
    live_doors: LiveDoors
    live_client: LiveClient
    live_media: LiveMedia
    upload_memory: Memory
    feed: Feed


# Async, because FastAPI runs other functions in a thread.
async def find_services(request: Request) -> Services:
    """What `build_app` made."""
    services: Services = request.state.services
    return services


Use = Annotated[Services, Depends(find_services)]

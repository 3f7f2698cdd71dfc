"""The connection to Redis and the one writer of statuses."""

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from redis.asyncio.client import PubSub
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import BatchyardError, InvalidTransitionError, NotFoundError
from shared.lifecycle import Event
from shared.state.batches import Batches, Pin
from shared.state.census import Census
from shared.state.claims import Claims
from shared.state.client import BoundedRetry, Client, translated
from shared.state.controls import Controls
from shared.state.dead_rows import DeadRows
from shared.state.events import Events
from shared.state.files import Files
from shared.state.keys import Keys
from shared.state.lanes import Lanes
from shared.state.leases import Lease
from shared.state.limits import Limits, QueueFullError, Quota
from shared.state.outbox import Outbox
from shared.state.positions import Positions
from shared.state.rebuild_notes import RebuildNotes
from shared.state.restore import Restore
from shared.state.scripts import Scripts, pairs
from shared.state.slices import Slices
from shared.state.uploads import Uploads
from shared.state.watch import Watch
from shared.state.webhook_deliveries import WebhookDeliveries
from shared.state.webhook_trials import WebhookTrials
from shared.state.webhooks import Webhooks

#: A hash tag: all keys of one fleet lie in one slot, so every script may touch any of them.
NAMESPACE = "{batchyard}:"
#: Of one process; each takes a file descriptor, of which processes often have 1024.
_MAX_CONNECTIONS = 500


class MovedError(BatchyardError):
    """Another event of the batch has got the number that was pinned."""


class State:
    """Redis as the fleet sees it; every status changes through `apply` or a script beside it.

    A call that has found no answer for `patience_seconds` is not tried again.
    """

    def __init__(
        self, url: str, *, namespace: str = NAMESPACE, patience_seconds: float = 30.0
    ) -> None:
        # Every script may be repeated, so a lost answer is answered by calling again.
        self._redis: Client = Client.from_url(
            url,
            decode_responses=True,
            socket_timeout=min(10.0, patience_seconds),
            socket_connect_timeout=min(5.0, patience_seconds),
            health_check_interval=15,
            # At redis-py's own limit of 100, the 101st call of the same moment would be an error.
            max_connections=_MAX_CONNECTIONS,
            retry=BoundedRetry(ExponentialBackoff(cap=1.0, base=0.05), 6),
            # The last one is uvloop's word for a connection that was reset.
            retry_on_error=[RedisConnectionError, RedisTimeoutError, RuntimeError],
        )
        self._redis.patience_seconds = patience_seconds
        self._namespace = namespace
        scripts = Scripts(self._redis, namespace)
        self._scripts = scripts
        self.batches = Batches(self._redis, scripts, namespace)
        self.slices = Slices(self._redis, namespace)
        self.claims = Claims(self._redis, scripts, namespace)
        self.controls = Controls(scripts)
        self.positions = Positions(self._redis, namespace)
        self.lanes = Lanes(self._redis, scripts, namespace)
        self.files = Files(self._redis, scripts, namespace)
        self.uploads = Uploads(self._redis, scripts, namespace)
        self.keys = Keys(self._redis, scripts, namespace)
        self.limits = Limits(scripts)
        self.outbox = Outbox(self._redis, namespace)
        self.events = Events(self._redis, scripts, namespace)
        self.webhooks = Webhooks(self._redis, scripts, namespace)
        self.webhook_deliveries = WebhookDeliveries(self._redis, scripts, namespace, self.webhooks)
        self.webhook_trials = WebhookTrials(self._redis, scripts, namespace)
        unhindered = Scripts(self._redis, namespace, for_rebuild=True)
        self.restore = Restore(self._redis, unhindered, namespace)
        self.rebuild_notes = RebuildNotes(self._redis, namespace)
        self.census = Census(self._redis, namespace)
        self.dead_rows = DeadRows(self._redis, namespace)

    async def apply(
        self,
        batch_id: str,
        event: Event,
        fields: Mapping[str, str | int] | None = None,
        *,
        quota: Quota | None = None,
        pin: Pin | None = None,
    ) -> bool:
        """Let `event` happen to the batch: status, time, indexes and outbox entry in one step.

        `fields` are written only if it happens. A batch whose fields name `queued_model`, `total`
        and `prompt_tokens` counts in its tenant's queue for as long as it is `in_progress`; several
        models and their tokens stand there with blanks between, as do several lanes in `lane`.
        Returns False when the batch is in the event's target status already. Raises
        InvalidTransitionError when its status rules the event out, NotFoundError when there is no
        such batch, QueueFullError when it would start and has no room within `quota`, and
        MovedError when another event has the number of `pin`.
        """
        limits = (quota.tokens, *quota.more_tokens) if quota else (0,)
        tokens = " ".join(map(str, limits))
        outcome = await self._scripts.run(
            "apply",
            batch_id,
            event,
            quota.requests if quota else 0,
            tokens,
            *_pin(pin),
            *pairs(fields or {}),
        )
        match outcome.split():
            case ["requests"]:
                raise QueueFullError("requests")
            case ["tokens", place]:
                raise QueueFullError("tokens", int(place) - 1)
            case _:
                return self._judge(batch_id, event, outcome)

    async def fail_lane(
        self, lane: str, batch_id: str, reason: str, fields: Mapping[str, str | int]
    ) -> bool:
        """LANE_FAILED with these fields; of a batch with other lanes, only this one's rows fail.

        Returns False when that has happened already. Raises as `apply` does.
        """
        outcome = await self._scripts.run("fail_lane", lane, batch_id, reason, *pairs(fields))
        return self._judge(batch_id, Event.LANE_FAILED, outcome)

    async def conclude(
        self,
        batch_id: str,
        event: Event,
        *,
        files: list[dict[str, str | int]],
        fields: Mapping[str, str | int],
        garbage: str | None = None,
        garbage_later: Sequence[str] = (),
        pin: Pin | None = None,
    ) -> bool:
        """`apply` for the end of a batch: its output files appear in the same step as its status.

        `garbage` is the prefix of the objects that nobody needs after it; `garbage_later` are
        objects and prefixes that are swept when a day has passed.
        """
        outcome = await self._scripts.run(
            "conclude",
            batch_id,
            event,
            json.dumps(files),
            json.dumps(pairs(fields)),
            garbage or "",
            json.dumps(garbage_later),
            *_pin(pin),
        )
        return self._judge(batch_id, event, outcome)

    def lease(self, name: str, holder: str, *, seconds: float) -> Lease:
        """A named right that one holder has at a time."""
        return Lease(self._scripts, name, holder, seconds=seconds)

    @asynccontextmanager
    async def bells(self, *names: str) -> AsyncIterator["Bells"]:
        """Hear the doorbells that scripts ring. Rings may be lost, so listeners sweep as well."""
        async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            with translated():
                await pubsub.subscribe(*(f"{self._namespace}bell:{name}" for name in names))
            yield Bells(pubsub)

    @asynccontextmanager
    async def watching(self, bell: str) -> AsyncIterator[Watch]:
        """Hear the events of chosen batches, and `bell`, over one connection."""
        async with self._redis.pubsub() as pubsub:
            watch = Watch(pubsub, self._namespace, bell)
            await watch.open()
            yield watch

    async def ring(self, name: str) -> None:
        """Wake whoever listens to `name`."""
        await self._redis.publish(f"{self._namespace}bell:{name}", "1")

    async def ping(self) -> None:
        """Raise TransientError when Redis cannot be reached."""
        await self._redis.ping()

    async def ready(self) -> None:
        """Raise TransientError when Redis cannot be reached, or takes no writes."""
        await self._redis.set(f"{self._namespace}ready", "1", px=60_000)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._redis.aclose()

    @staticmethod
    def _judge(batch_id: str, event: Event, outcome: str) -> bool:
        match outcome:
            case "ok":
                return True
            case "repeat":
                return False
            case "moved":
                raise MovedError(f"Batch {batch_id} has another event of this number.")
            case "missing":
                raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
            case _:
                raise InvalidTransitionError(batch_id, event, outcome)


def _pin(pin: Pin | None) -> tuple[str | int, str | int]:
    return pin or ("", "")


class Bells:
    """Doorbells as something to wait for."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    async def wait(self, seconds: float) -> bool:
        """True as soon as one rings, False after `seconds`; takes all rings that piled up at once.

        Raises TransientError while Redis cannot be reached; the subscription outlives that.
        """
        deadline = time.monotonic() + seconds
        rang = False
        with translated():
            # A subscription's own confirmation reads as no message, before the time is up.
            while not rang and (left := deadline - time.monotonic()) > 0:
                rang = await self._pubsub.get_message(timeout=left) is not None
            while rang and await self._pubsub.get_message(timeout=0) is not None:
                pass
        return rang

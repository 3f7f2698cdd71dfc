"""The connection to Redis, and the only writer of statuses."""

import json
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from redis.asyncio.client import PubSub
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import BatchyardError, InvalidTransitionError, NotFoundError
from shared.lifecycle import Event
from shared.state.additions import Additions
from shared.state.answers import Answers
from shared.state.away import Away, RecordReader
from shared.state.batches import Batches, Pin
from shared.state.census import Census
from shared.state.claims import Claims
from shared.state.client import BoundedRetry, Client, translated
from shared.state.controls import Controls
from shared.state.dead_rows import DeadRows
from shared.state.doors import Doors
from shared.state.engines import Engines
from shared.state.events import Events
from shared.state.files import Files
from shared.state.keys import Keys
from shared.state.lanes import Lanes
from shared.state.leases import Lease
from shared.state.limits import Limits, QueueFullError, Quota
from shared.state.live_calls import LiveCalls
from shared.state.outbox import Outbox
from shared.state.paces import Paces
from shared.state.pipelines import Pipelines
from shared.state.positions import Positions
from shared.state.rebuild_notes import RebuildNotes
from shared.state.remakes import Remakes
from shared.state.restore import Restore
from shared.state.scripts import Scripts, pairs
from shared.state.sessions import Sessions
from shared.state.slices import Slices
from shared.state.spending import Spending
from shared.state.streams import Streams
from shared.state.survey import Survey
from shared.state.tenants import Tenants
from shared.state.uploads import Uploads
from shared.state.watch import Watch
from shared.state.webhook_deliveries import WebhookDeliveries
from shared.state.webhook_trials import WebhookTrials
from shared.state.webhooks import Webhooks

#: A hash tag puts all keys of a fleet into one slot, so that a script may use any of them.
NAMESPACE = "{batchyard}:"
#: Per process. Each takes a file descriptor, and processes often have only 1024.
_MAX_CONNECTIONS = 500
_CALL_SECONDS = 10.0
#: As redis-py has them; and the kernel brings nothing to the server for whose answer nobody waits
#: any more. By then the call was repeated, and others have changed what it would change again.
_SOCKET_OPTIONS = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: int(1000 * _CALL_SECONDS),
}


class MovedError(BatchyardError):
    """Another event of the batch has taken the pinned number."""


class State:
    """Redis as the fleet sees it. Statuses change only through `apply`, `fail_lane` and `conclude`.

    A call that has had no answer for `patience_seconds` is not retried.
    """

    def __init__(
        self, url: str, *, namespace: str = NAMESPACE, patience_seconds: float = 30.0
    ) -> None:
        # Every script may be repeated, so a call whose answer is lost is simply retried.
        self._redis: Client = Client.from_url(
            url,
            decode_responses=True,
            socket_timeout=min(_CALL_SECONDS, patience_seconds),
            socket_connect_timeout=min(5.0, patience_seconds),
            socket_keepalive=True,
            socket_keepalive_options=_SOCKET_OPTIONS,
            health_check_interval=15,
            # With redis-py's default of 100, the 101st concurrent call would fail.
            max_connections=_MAX_CONNECTIONS,
            retry=BoundedRetry(ExponentialBackoff(cap=1.0, base=0.05), 6),
            # RuntimeError is what uvloop raises for a connection that was reset.
            retry_on_error=[RedisConnectionError, RedisTimeoutError, RuntimeError],
        )
        self._redis.patience_seconds = patience_seconds
        self._namespace = namespace
        scripts = Scripts(self._redis, namespace)
        self._scripts = scripts
        self.away = Away(self._redis, scripts, namespace)
        self.batches = Batches(self._redis, scripts, namespace, self.away)
        self.additions = Additions(self._redis, scripts, namespace, self.away)
        self.slices = Slices(self._redis, namespace)
        self.claims = Claims(self._redis, scripts, namespace)
        self.controls = Controls(scripts, self.away)
        self.positions = Positions(self._redis, namespace)
        self.pipelines = Pipelines(self._redis, scripts, namespace)
        self.paces = Paces(self._redis, namespace, self.away)
        self.sessions = Sessions(self._redis, namespace)
        self.engines = Engines(self._redis, scripts, namespace)
        self.lanes = Lanes(self._redis, scripts, namespace, self.engines)
        self.files = Files(self._redis, scripts, namespace)
        self.uploads = Uploads(self._redis, scripts, namespace)
        self.keys = Keys(self._redis, scripts, namespace)
        self.tenants = Tenants(self._redis, scripts, namespace)
        self.streams = Streams(scripts)
        self.downloads = Streams(scripts, "downloads")
        self.live_calls = LiveCalls(scripts)
        self.doors = Doors(self._redis, scripts, namespace)
        self.limits = Limits(scripts, self.away)
        self.outbox = Outbox(self._redis, namespace)
        self.events = Events(self._redis, scripts, namespace, self.away)
        self.webhooks = Webhooks(self._redis, scripts, namespace)
        self.webhook_deliveries = WebhookDeliveries(self._redis, scripts, namespace, self.webhooks)
        self.webhook_trials = WebhookTrials(self._redis, scripts, namespace)
        rebuild_scripts = Scripts(self._redis, namespace, for_rebuild=True)
        self.restore = Restore(self._redis, rebuild_scripts, namespace)
        self.rebuild_notes = RebuildNotes(self._redis, namespace)
        self.census = Census(self._redis, namespace)
        self.dead_rows = DeadRows(self._redis, namespace)
        self.answers = Answers(self._redis, namespace)
        self.remakes = Remakes(self._redis, namespace)
        self.spending = Spending(self._redis, namespace)
        self.survey = Survey(self._redis, namespace)

    def read_records_by(self, reader: RecordReader) -> None:
        """Read the records of ended batches that have left Redis in this way.

        Without it, this process knows nothing of such batches.
        """
        self.away.read_by(reader)
        self.restore.away.read_by(reader)

    async def apply(
        self,
        batch_id: str,
        event: Event,
        fields: Mapping[str, str | int] | None = None,
        *,
        quota: Quota | None = None,
        pin: Pin | None = None,
    ) -> bool:
        """Apply `event` to the batch: status, time, indexes and outbox entry change in one step.

        `fields` are written only if the event is applied. A batch with the fields `queued_model`,
        `queued_requests` (or else `total`) and `prompt_tokens` counts against its tenant's quota
        while it is `in_progress`.
        Several models, their tokens, and several lanes in `lane` are separated by spaces. Returns
        False if the batch already has the event's target status. Raises InvalidTransitionError if
        its status does not allow the event, NotFoundError if the batch does not exist,
        QueueFullError if starting it would exceed `quota`, and MovedError if another event has the
        number of `pin`.
        """
        limits = (quota.tokens, *quota.more_tokens) if quota else (0,)
        tokens = " ".join(map(str, limits))
        outcome = await self._found(
            batch_id,
            "apply",
            batch_id,
            event,
            quota.requests if quota else 0,
            tokens,
            *_pin(pin),
            *pairs(fields or {}),
        )
        match outcome.split():
            case ["requests", used]:
                raise QueueFullError("requests", used=int(used))
            case ["tokens", used, place]:
                raise QueueFullError("tokens", int(place) - 1, used=int(used))
            case _:
                return self._judge(batch_id, event, outcome)

    async def fail_lane(
        self, lane: str, batch_id: str, reason: str, fields: Mapping[str, str | int]
    ) -> bool:
        """Apply LANE_FAILED with these fields; with other lanes left, only this lane's rows fail.

        Returns False if that has already happened. Raises like `apply`.
        """
        outcome = await self._found(batch_id, "fail_lane", lane, batch_id, reason, *pairs(fields))
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

        `garbage` is the prefix of objects that nobody needs any more. `garbage_later` are objects
        and prefixes that are swept a day later.
        """
        outcome = await self._found(
            batch_id,
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
        """A named lease, which one holder has at a time."""
        return Lease(self._scripts, name, holder, seconds=seconds)

    @asynccontextmanager
    async def bells(self, *names: str) -> AsyncIterator["Bells"]:
        """Listen to doorbells that scripts ring. Rings may be lost, so listeners must also poll."""
        async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            with translated():
                await pubsub.subscribe(*(f"{self._namespace}bell:{name}" for name in names))
            yield Bells(pubsub)

    @asynccontextmanager
    async def watching(self, bell: str) -> AsyncIterator[Watch]:
        """Receive the events of chosen batches, and the rings of `bell`, over one connection."""
        async with self._redis.pubsub() as pubsub:
            watch = Watch(pubsub, self._namespace, bell)
            await watch.open()
            yield watch

    async def ring(self, name: str) -> None:
        """Wake the listeners of `name`."""
        await self._redis.publish(f"{self._namespace}bell:{name}", "1")

    async def ping(self) -> None:
        """Raise TransientError if Redis cannot be reached."""
        await self._redis.ping()

    async def ready(self) -> None:
        """Raise TransientError if Redis cannot be reached or accepts no writes."""
        await self._redis.set(f"{self._namespace}ready", "1", px=60_000)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _found(self, batch_id: str, script: str, *arguments: str | float) -> str:
        """What the script returns, which needs the batch's record here."""
        return await self.away.found(batch_id, lambda: self._scripts.run(script, *arguments))

    @staticmethod
    def _judge(batch_id: str, event: Event, outcome: str) -> bool:
        match outcome:
            case "ok":
                return True
            case "repeat":
                return False
            case "moved":
                raise MovedError(f"Batch {batch_id} already has another event with this number.")
            case "missing":
                raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
            case _:
                raise InvalidTransitionError(batch_id, event, outcome)


def _pin(pin: Pin | None) -> tuple[str | int, str | int]:
    return pin or ("", "")


class Bells:
    """A subscription to doorbells."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    async def wait(self, seconds: float) -> bool:
        """Return True as soon as a bell rings, or False after `seconds`.

        All rings that have piled up count as one. Raises TransientError while Redis cannot be
        reached; the subscription survives that.
        """
        deadline = time.monotonic() + seconds
        rang = False
        with translated():
            # The confirmation of a subscription reads as no message before the time is up.
            while not rang and (left := deadline - time.monotonic()) > 0:
                rang = await self._pubsub.get_message(timeout=left) is not None
            while rang and await self._pubsub.get_message(timeout=0) is not None:
                pass
        return rang

"""Sends the webhook deliveries that ended batches have written, and retries for three days.

A delivery is claimed for a while, and recorded after the attempt. If the dispatcher dies in
between, the delivery is sent again under the same id.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import stamina
import structlog

from dispatcher.schedule import DELAYS, GONE, SLOW_DOWN, next_attempt, pause
from dispatcher.sender import Answer, Sender
from dispatcher.traces import calling, note_answer
from shared import crash
from shared.errors import TransientError
from shared.openai.webhooks import WebhookAttempt, headers
from shared.state import State
from shared.state.webhook_deliveries import Due, Outcome
from shared.state.webhook_trials import Trial
from shared.tasks import end
from shared.tenant_slots import TenantSlots
from shared.tracing import spans

log = structlog.get_logger()

#: Deliveries are looked for this often even if no bell rings.
_SWEEP_SECONDS = 1.0
#: Between two rounds: bells may ring often.
_PAUSE_SECONDS = 0.01
#: Seconds for recording an attempt in Redis.
_SETTLE_SECONDS = 5.0
#: How much longer a claim lasts than its attempt may take.
_LEASE_MARGIN_SECONDS = 10.0
#: Tests at a time, beside the deliveries.
_TRIALS = 16
#: Tests that are taken from Redis in one round.
_MANY = 100


class Verdict(NamedTuple):
    """The consequence of an attempt. Times are seconds from now."""

    outcome: Outcome
    wait_seconds: float = 0.0
    pause_seconds: float = 0.0


class Deliverer:
    """Makes many attempts at once, so that no receiver holds up the others.

    One endpoint has few of them, and a tenant no more than it leaves free.
    """

    def __init__(
        self,
        state: State,
        sender: Sender,
        *,
        timeout_seconds: float,
        attempts: int,
        attempts_per_endpoint: int,
        delays: tuple[float, ...] = DELAYS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._state = state
        self._sender = sender
        self._lease_seconds = timeout_seconds + _LEASE_MARGIN_SECONDS
        self._attempts = attempts
        self._per_endpoint = attempts_per_endpoint
        self._delays = delays
        self._chance = chance
        self._trial_slots = TenantSlots(_TRIALS)
        #: Each attempt under way, with its tenant.
        self._running: dict[asyncio.Task[None], str] = {}
        self._trying: set[asyncio.Task[None]] = set()

    async def deliver(self) -> None:
        """Deliver until cancelled. Raises TransientError when Redis is lost."""
        try:
            async with self._state.bells("webhooks") as bells:
                while True:
                    wait = await self._round()
                    await asyncio.sleep(_PAUSE_SECONDS)
                    await bells.wait(min(wait, _SWEEP_SECONDS))
        except asyncio.CancelledError:
            # The next leader sends again what was under way, once its claims have expired.
            await end(*self._running, *self._trying)
            raise

    async def _round(self) -> float:
        """Start what is due. Returns the seconds until there may be more."""
        for trial in await self._state.webhook_trials.take(limit=_MANY):
            self._trying.add(task := asyncio.create_task(self._try(trial)))
            task.add_done_callback(self._note_end)
        free = self._attempts - len(self._running)
        if not free:
            return _SWEEP_SECONDS
        found, wait = await self._state.webhook_deliveries.claim(
            limit=free,
            under_way=Counter(self._running.values()),
            per_endpoint=self._per_endpoint,
            lease_seconds=self._lease_seconds,
        )
        for due in found:
            self._running[task := asyncio.create_task(self._attempt(due))] = due.tenant
            task.add_done_callback(self._note_end)
        return _SWEEP_SECONDS if wait is None else wait

    async def _attempt(self, due: Due) -> None:
        with spans.named(due.traceparent):
            await self._send(due)

    async def _send(self, due: Due) -> None:
        body, at = due.event.to_bytes(), int(time.time())
        signed = dict(headers(due.id, at, body, due.secrets))
        with calling(due) as span:
            if trace := span.traceparent or due.traceparent:
                signed["traceparent"] = trace
            answer = await self._sender.post(due.url, signed, body)
            note_answer(span, answer)
        crash.point("dispatcher.webhook_sent")
        verdict = judge(due, answer, now=time.time(), chance=self._chance(), delays=self._delays)
        attempt = WebhookAttempt(attempted_at=at, status_code=answer.status, error=answer.error)
        async for repeat in stamina.retry_context(
            on=TransientError, attempts=None, timeout=_SETTLE_SECONDS, wait_max=1
        ):
            with repeat:
                await self._state.webhook_deliveries.settle(
                    due,
                    verdict.outcome,
                    attempt,
                    wait_seconds=verdict.wait_seconds,
                    pause_seconds=verdict.pause_seconds,
                    per_endpoint=self._per_endpoint,
                )
        log.info(
            "webhook.attempted",
            delivery_id=due.id,
            endpoint_id=due.endpoint,
            **{f"{due.event.about}_id": due.event.data.id},
            outcome=verdict.outcome,
            status=answer.status,
            reason=answer.error,
        )

    async def _try(self, trial: Trial) -> None:
        body = trial.event.to_bytes()
        async with self._trial_slots.taken(trial.tenant):
            at = int(time.time())
            signed = headers(trial.id, at, body, trial.secrets)
            answer = await self._sender.post(trial.url, signed, body)
        attempt = WebhookAttempt(attempted_at=at, status_code=answer.status, error=answer.error)
        await self._state.webhook_trials.finish(trial, attempt)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._trying.discard(task)
        # Its delivery is claimed again when the claim expires; the others go on.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhook.attempt_broke", code="internal_error", exc_info=error)


def judge(
    due: Due, answer: Answer, *, now: float, chance: float, delays: tuple[float, ...] = DELAYS
) -> Verdict:
    """2xx is delivered, 410 is refused for good, and anything else is tried again."""
    if answer.status is not None and 200 <= answer.status < 300:  # noqa: PLR2004  # HTTP's classes
        return Verdict("delivered")
    if answer.status == GONE:
        return Verdict("gone")
    is_slow = answer.is_timeout or answer.status in SLOW_DOWN
    pause_seconds = pause(due.slow + 1, answer.retry_after) if is_slow else 0.0
    next_at = next_attempt(
        since=due.since,
        now=now,
        tries=due.tries + 1,
        chance=chance,
        retry_after=answer.retry_after,
        delays=delays,
    )
    if next_at is None:
        return Verdict("failed", pause_seconds=pause_seconds)
    return Verdict("retry", next_at - now, pause_seconds)

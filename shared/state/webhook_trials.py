"""Test deliveries: one sample event to a webhook endpoint, whose answer a client waits for."""

import json
from typing import NamedTuple

from shared import ids
from shared.openai.webhooks import (
    WebhookAttempt,
    WebhookEvent,
    WebhookEventData,
    sample_id,
)
from shared.state.client import Client
from shared.state.scripts import Scripts

#: A test that has not started by then is dropped, because its client has gone.
_TEST_SECONDS = 40


class Trial(NamedTuple):
    """A test delivery: one attempt, whose answer a client waits for."""

    id: str
    endpoint: str
    tenant: str
    url: str
    secrets: tuple[str, ...]
    event: WebhookEvent


class WebhookTrials:
    """The noun `webhook trial` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def start(self, endpoint_id: str, trial_id: str, event_type: str) -> bool:
        """Request a test. Returns False while another test of the endpoint is running."""
        return bool(
            await self._scripts.run("try_webhook", endpoint_id, trial_id, event_type, _TEST_SECONDS)
        )

    async def take(self, *, limit: int) -> list[Trial]:
        """Take requested tests. The caller must carry them out."""
        taken = await self._redis.lpop(f"{self._namespace}webhook-tests", limit) if limit else None
        wanted = [json.loads(text) for text in taken or ()]
        seconds, _ = await self._redis.time()
        found: list[Trial] = []
        for one in wanted:
            url, secret, old, tenant = await self._redis.hmget(
                f"{self._namespace}webhook:{one['endpoint']}",
                "url",
                "secret",
                "old_secrets",
                "tenant",
            )
            if url and seconds - one["at"] < _TEST_SECONDS:
                sample = sample_id(one["type"])
                event = WebhookEvent(
                    id=ids.event_id(sample, 0),
                    type=one["type"],
                    created_at=one["at"],
                    data=WebhookEventData(id=sample),
                )
                secrets = _live_secrets(secret, old, seconds)
                found.append(Trial(one["id"], one["endpoint"], tenant or "", url, secrets, event))
        return found

    async def finish(self, trial: Trial, attempt: WebhookAttempt) -> None:
        """Store the answer and wake the client that waits for it."""
        async with self._redis.pipeline(transaction=False) as pipe:
            answer = f"{self._namespace}webhook-test-answer:{trial.id}"
            pipe.set(answer, attempt.model_dump_json(), ex=_TEST_SECONDS)
            pipe.delete(f"{self._namespace}webhook-testing:{trial.endpoint}")
            pipe.publish(f"{self._namespace}bell:{trial_bell(trial.id)}", "1")
            await pipe.execute()

    async def answer(self, trial_id: str) -> WebhookAttempt | None:
        """The result of a test; None while there is none."""
        answer = await self._redis.get(f"{self._namespace}webhook-test-answer:{trial_id}")
        return WebhookAttempt.model_validate_json(answer) if answer else None


def trial_bell(trial_id: str) -> str:
    """The doorbell that rings when a test has finished."""
    return f"webhook-test:{trial_id}"


def _live_secrets(secret: str, old: str | None, now: int) -> tuple[str, ...]:
    kept = json.loads(old) if old else []
    return (secret, *(text for text, until in kept if until > now))

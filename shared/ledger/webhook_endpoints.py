"""Webhook endpoints in S3.

Signing secrets are stored in plain text, as in Redis. Whoever can read the bucket can also read
every prompt.
"""

from collections.abc import Mapping

from shared.errors import BrokenObjectError
from shared.ledger.records import decoded, encoded
from shared.state import State
from shared.storage import Storage

WEBHOOKS = "webhooks/"


def webhook_key(tenant: str, endpoint_id: str) -> str:
    """The S3 key of a webhook endpoint."""
    return f"{WEBHOOKS}{tenant}/{endpoint_id}.json"


async def save_webhook(state: State, storage: Storage, tenant: str, endpoint_id: str) -> None:
    """Write the endpoint's current state to S3.

    If two clients change it at once, the later change wins. Raises TransientError if a rebuild of
    Redis may undo the change.
    """
    fields = await state.webhooks.fields(endpoint_id)
    while fields:
        await storage.put(webhook_key(tenant, endpoint_id), encoded(fields))
        await state.restore.raise_if_under_way()
        now = await state.webhooks.fields(endpoint_id)
        if now == fields:
            return
        fields = now
    await storage.remove([webhook_key(tenant, endpoint_id)])
    # The endpoint is gone, perhaps because a rebuild did not find it in S3.
    await state.restore.raise_if_under_way()


async def remove_webhook(storage: Storage, tenant: str, endpoint_id: str) -> None:
    """Remove the endpoint from S3. Call it before deleting it from Redis."""
    await storage.remove([webhook_key(tenant, endpoint_id)])


def read_webhook(key: str, body: bytes) -> Mapping[str, str]:
    """The fields of the webhook endpoint at this S3 key. Raises BrokenObjectError."""
    fields = decoded(key, body, dict[str, str])
    if not fields.get("created_at", "").isdigit() or not fields.get("url"):
        raise BrokenObjectError(key, "it lacks something that it should have")
    return fields

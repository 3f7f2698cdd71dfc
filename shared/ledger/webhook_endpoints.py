"""Webhook endpoints in S3.

Signing secrets are stored in plain text, as in Redis. Whoever can read the bucket can also read
every prompt.
"""

from collections.abc import Mapping

import msgspec

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
        await storage.put(webhook_key(tenant, endpoint_id), msgspec.json.encode(fields))
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


def read_webhook(body: bytes) -> Mapping[str, str]:
    """Decode the stored fields of a webhook endpoint."""
    return msgspec.json.decode(body, type=dict[str, str])

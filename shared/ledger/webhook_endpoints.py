"""Webhook endpoints as S3 keeps them.

Signing secrets are stored as they are, here and in Redis: whoever can read the bucket can read
every prompt as well.
"""

from collections.abc import Mapping

import msgspec

from shared.state import State
from shared.storage import Storage

WEBHOOKS = "webhooks/"


def webhook_key(tenant: str, endpoint_id: str) -> str:
    """Where a webhook endpoint lies."""
    return f"{WEBHOOKS}{tenant}/{endpoint_id}.json"


async def save_webhook(state: State, storage: Storage, tenant: str, endpoint_id: str) -> None:
    """Write the endpoint, as it is by now, to S3.

    Of two that change it at once, the later one's wish stands in the end. Raises TransientError
    where a rebuild of Redis may undo the change.
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
    # A rebuild that did not find it in S3 has deleted it.
    await state.restore.raise_if_under_way()


async def remove_webhook(storage: Storage, tenant: str, endpoint_id: str) -> None:
    """Take the endpoint from S3, before it goes from Redis."""
    await storage.remove([webhook_key(tenant, endpoint_id)])


def read_webhook(body: bytes) -> Mapping[str, str]:
    """The fields of a webhook endpoint as they were kept."""
    return msgspec.json.decode(body, type=dict[str, str])

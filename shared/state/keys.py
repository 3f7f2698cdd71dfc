"""API keys: which tenant a key stands for. Only a digest of a key is ever stored."""

import time

from shared import ids
from shared.state.client import Client


class Keys:
    """The noun `API key` of State."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def add(self, tenant: str, key: str) -> None:
        """Let `key` act for `tenant`."""
        await self._redis.hset(
            self._key(key),
            mapping={"tenant": tenant, "created_at": int(time.time()), "hint": key[-4:]},
        )

    async def create(self, tenant: str) -> str:
        """A new key for `tenant`; it cannot be read back."""
        key = ids.new_api_key()
        await self.add(tenant, key)
        return key

    async def tenant(self, key: str) -> str | None:
        """Whose key it is; None for an unknown one."""
        return await self._redis.hget(self._key(key), "tenant")

    def _key(self, key: str) -> str:
        return f"{self._namespace}key:{ids.api_key_digest(key)}"

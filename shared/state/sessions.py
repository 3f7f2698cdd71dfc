"""Sessions of people who signed in to the page with an API key. Only digests are stored."""

import hashlib
import secrets

from shared import ids
from shared.state.client import Client


class Sessions:
    """The noun `session` of State."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def open(self, key: str, *, seconds: int) -> str:
        """Begin a session of the key, whether or not it is valid, and return the session's token.

        The token cannot be read again, and the key cannot be found by it.
        """
        token = secrets.token_urlsafe(32)
        await self._redis.set(self._key(token), ids.api_key_digest(key), ex=seconds)
        return token

    async def key_digest(self, token: str) -> str | None:
        """The digest of the session's key; None if there is no such session any more."""
        digest: str | None = await self._redis.get(self._key(token))
        return digest

    async def close(self, token: str) -> None:
        """End the session."""
        await self._redis.delete(self._key(token))

    def _key(self, token: str) -> str:
        return f"{self._namespace}session:{hashlib.sha256(token.encode()).hexdigest()}"

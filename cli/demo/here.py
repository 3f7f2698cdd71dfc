"""A fleet that is running, as its gateway's environment describes it: in containers."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from cli.fleet.credentials import TENANT
from cli.fleet.fleet import first_serving
from shared.catalog_file import load_catalog
from shared.errors import SetupError
from shared.settings import SharedSettings
from shared.state import State

_PORT = "8000"


@contextmanager
def fleet_here() -> Iterator[dict[str, str]]:
    """The variables that scripts need; the API key is valid while the context is open.

    Raises SetupError that says what is missing.
    """
    try:
        settings = SharedSettings()
    except ValidationError as error:
        names = ", ".join(f"BATCHYARD_{problem['loc'][0]}".upper() for problem in error.errors())
        raise SetupError(f"This is not the environment of a gateway: {names} missing.") from error
    catalog = load_catalog(settings.catalog)
    chat = first_serving(catalog, "/v1/chat/completions")
    embed = first_serving(catalog, "/v1/embeddings")
    if not chat or not embed:
        raise SetupError(
            f"{settings.catalog}: the demo needs a model for chat and one for embeddings."
        )
    redis_url = settings.redis_url.get_secret_value()
    key, key_id = asyncio.run(_make_key(redis_url))
    try:
        yield {
            "OPENAI_BASE_URL": f"http://127.0.0.1:{os.environ.get('BATCHYARD_PORT', _PORT)}/v1",
            "OPENAI_API_KEY": key,
            "BATCHYARD_AMQP_URL": settings.amqp_url.get_secret_value(),
            "CHAT_MODEL": chat,
            "EMBED_MODEL": embed,
        }
    finally:
        asyncio.run(_revoke(redis_url, key_id))


async def _make_key(redis_url: str) -> tuple[str, str]:
    state = State(redis_url)
    key = await state.keys.create(TENANT, name="demo")
    record = await state.keys.get(key)
    await state.close()
    return key, record.id


async def _revoke(redis_url: str, key_id: str) -> None:
    state = State(redis_url)
    await state.keys.revoke(key_id)
    await state.close()

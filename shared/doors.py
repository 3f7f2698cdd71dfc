"""The doors of engines: where a replica takes live calls, and what a call there carries. Pure.

A replica makes up the token when it starts and tells it to its lane job over Ray. The lane job
writes it to Redis for the gateways. Nobody else knows it.
"""

from collections.abc import Iterable

import msgspec

#: The headers of a call at a door. What a client sends never gets into them.
TENANT_HEADER, SALT_HEADER = b"x-batchyard-tenant", b"x-batchyard-salt"

#: What a door answers to a call for a tenant's adapter that the replica has not loaded, and where
#: a gateway then brings the adapter's file.
ADAPTER_MISSING = 424
ADAPTERS_PATH = "/adapters/"


class Door(msgspec.Struct, frozen=True):
    """Where one replica takes live calls. `token` is the bearer token that it asks for."""

    replica: str
    host: str
    port: int
    token: str
    #: How many calls have seats that no batch gets, and whether batches have seats there now.
    seats: int = 0
    has_batches: bool = False


def encode(doors: Iterable[Door]) -> bytes:
    """The doors as Redis keeps them."""
    return msgspec.json.encode(list(doors))


def decode(text: str | bytes) -> list[Door]:
    """The inverse of `encode`. Fields of newer versions are left out."""
    return msgspec.json.decode(text, type=list[Door])

"""Knows rows again by what they have in some columns. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

#: 96 bits: the chance that any two of a million rows share them is 7e-18.
DIGEST_BYTES = 12


def row_digest(stage: int, row: Mapping[str, Any], columns: Sequence[str]) -> bytes:
    """What is kept of the row at this stage."""
    values = [stage, *(row.get(name) for name in columns)]
    text = msgspec.json.encode(values, order="deterministic")
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def split_digests(joined: bytes) -> list[bytes]:
    """The digests that were joined."""
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]

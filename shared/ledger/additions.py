"""Additions: the rows of an open batch. Each call that brings some has an object of its own.

The objects of a batch are numbered from 0 without gaps, and each is created once: whoever creates
a number has decided what comes there. So they say in which order rows came, who was first with a
name, and whether the batch was closed before a row. An addition is there before it is answered.

Slices of its rows name it as their copy, which alone has these lines until the batch ends.
"""

import re

import msgspec

from shared.checksums import checksum
from shared.errors import BrokenObjectError
from shared.ledger.copies import copy_key
from shared.ledger.records import decoded, encoded
from shared.slices import ADDED, Slice, with_answers
from shared.storage import Storage

_NAME = re.compile(rf"copies/(\d{{8}}){ADDED}\.jsonl")


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """What the last line of its object says of the lines before it. Numbers are of these lines."""

    number: int
    #: Where the lines begin in the batch's input, and how many bytes they have.
    start: int
    size: int = 0
    slices: list[Slice] = []
    prompt_tokens: int = 0
    sequences: int = 0
    checksum: str = ""
    #: The batch is closed by it, and it has no lines.
    is_last: bool = False

    @property
    def rows(self) -> int:
        return sum(slice_.rows for slice_ in self.slices)

    @property
    def tokens(self) -> int:
        return sum(slice_.tokens for slice_ in self.slices)


def addition_name(number: int) -> str:
    """The addition's name among the copies of its batch."""
    return f"{number:08d}{ADDED}"


def addition_key(batch_id: str, number: int) -> str:
    """The S3 key of an addition."""
    return copy_key(batch_id, addition_name(number))


def answers_name(number: int, nonce: str) -> str:
    """The name of the copy of the addition that has answers; nobody else writes that of a nonce."""
    return with_answers(f"{addition_name(number)}-{nonce}")


def number_of(name: str) -> int | None:
    """The number of the addition with this name in the batch's folder; None for another object."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


async def create_addition(
    storage: Storage, batch_id: str, addition: Addition, lines: bytes
) -> bool:
    """Create the addition. Returns False if there is one with its number already."""
    whole = msgspec.structs.replace(addition, checksum=checksum(lines))
    key = addition_key(batch_id, addition.number)
    return await storage.put_once(key, lines + encoded(whole)) is not None


async def read_addition(storage: Storage, key: str) -> tuple[Addition, bytes]:
    """The addition and its lines. Raises NotFoundError and BrokenObjectError."""
    body = await storage.get(key)
    last = body[body.rfind(b"\n") + 1 :]
    addition, lines = decoded(key, last, Addition), body[: len(body) - len(last)]
    if checksum(lines) != addition.checksum or len(lines) != addition.size:
        raise BrokenObjectError(key, "its bytes are not those that were written")
    if addition_name(addition.number) != key.rpartition("/")[2].removesuffix(".jsonl"):
        raise BrokenObjectError(key, "it is another addition")
    return addition, lines

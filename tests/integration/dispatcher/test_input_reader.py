"""Parts of an input are read together where they follow each other."""

import asyncio

import pytest

from dispatcher.input_reader import InputReader
from shared.errors import NotFoundError
from shared.state import BatchRecord, State
from shared.storage import Storage
from tests.batches import submitted

_PART = 1000
_PARTS = 3000


async def _record(state: State, storage: Storage, body: bytes) -> BatchRecord:
    batch_id = await submitted(state, storage, body)
    return await state.batches.get(batch_id)


async def test_each_part_has_its_bytes_whoever_asks_first(state: State, storage: Storage) -> None:
    body = b"".join(number.to_bytes(4) * (_PART // 4) for number in range(_PARTS))
    reader = InputReader(storage, await _record(state, storage, body))
    wanted = [*range(40), 2000, *range(2990, _PARTS), 7, *range(100, 1300)]

    found: list[bytes] = []
    for first in range(0, len(wanted), 4):
        parts = (reader.get(n * _PART, (n + 1) * _PART) for n in wanted[first : first + 4])
        found += await asyncio.gather(*parts)

    assert found == [body[n * _PART : (n + 1) * _PART] for n in wanted]


async def test_parts_that_follow_each_other_do_not_need_a_call_each(
    state: State, storage: Storage
) -> None:
    record = await _record(state, storage, bytes(_PARTS * _PART))
    reader = InputReader(storage, record)
    await reader.get(0, _PART)
    await reader.get(_PART, 2 * _PART)
    await storage.remove([record.fields["key"]])

    # These were read with the second part.
    for number in range(2, 1000):
        assert await reader.get(number * _PART, (number + 1) * _PART) == bytes(_PART)
    with pytest.raises(NotFoundError):
        await reader.get(2000 * _PART, 2001 * _PART)


async def test_one_that_is_cancelled_takes_nothing_from_the_others(
    state: State, storage: Storage
) -> None:
    reader = InputReader(storage, await _record(state, storage, bytes(_PARTS * _PART)))
    await reader.get(0, _PART)
    first, second = [asyncio.create_task(reader.get(n * _PART, (n + 1) * _PART)) for n in (1, 2)]
    await asyncio.sleep(0)

    first.cancel()

    assert await second == bytes(_PART)

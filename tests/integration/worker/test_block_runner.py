"""How a wave takes blocks of slices from S3 to their commits, on real Redis and S3."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from shared.ordering.work import Work
from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from tests.batches import ROWS_A_SLICE, claim, feed, in_progress
from tests.eventually import eventually
from tests.faults.s3_proxy import s3_proxy
from tests.servers import S3
from worker.batch_watch import BatchWatch
from worker.block_runner import BlockRunner
from worker.engine_errors import Results
from worker.slice_runner import SliceRunner


class _PatientEngine:
    """Answers the rows of a slice once it may."""

    def __init__(self) -> None:
        self.rows = Counter[int]()
        self._may_answer: dict[int, asyncio.Event] = {}

    def answer(self, *slices: int) -> None:
        """Let the rows of these slices have answers."""
        for number in slices:
            self._gate(number).set()

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        number = order[0].number // ROWS_A_SLICE
        self.rows[number] += len(lines)
        await self._gate(number).wait()
        yield [(position, (200, b"{}", 0)) for position in range(len(lines))]

    async def withdraw(self, batch_id: str) -> None:
        """No row waits in front of it."""

    def _gate(self, number: int) -> asyncio.Event:
        return self._may_answer.setdefault(number, asyncio.Event())


async def test_a_slice_is_committed_while_others_of_its_block_run(
    state: State, storage: Storage
) -> None:
    engine, [first, second] = _PatientEngine(), await _claims(state, storage, 2)
    async with _running(state, storage, engine, [[first, second]]):
        engine.answer(0)
        await eventually(lambda: _is_committed(state, first))

        assert not await _is_committed(state, second)
        engine.answer(1)

    assert await _is_committed(state, second)


async def test_the_next_block_has_the_seats_of_rows_that_are_done(
    state: State, storage: Storage
) -> None:
    engine, claims = _PatientEngine(), await _claims(state, storage, 4)
    async with _running(state, storage, engine, [claims[:2], claims[2:]], room=2):
        # Either block may be read first.
        await eventually(lambda: len(engine.rows) == 2)
        assert set(engine.rows) in ({0, 1}, {2, 3})

        engine.answer(min(engine.rows))
        await eventually(lambda: len(engine.rows) == 3)

        engine.answer(*range(4))

    assert [await _is_committed(state, one) for one in claims] == [True] * 4


async def test_slices_of_a_block_that_waits_for_its_turn_can_be_taken_back(
    state: State, storage: Storage, s3: S3
) -> None:
    engine, claims = _PatientEngine(), await _claims(state, storage, 3)
    async with (
        _reading(storage, s3) as (watched, read),
        _running(state, watched, engine, [[one] for one in claims]),
    ):
        # Any block may be read first and run, and any other be the next one.
        await eventually(lambda: engine.rows.total() > 0 and len(read) == 3)
        # That one has begun, since it waits only for room.
        await eventually(lambda: _has_begun(state, claims[0], slices=2))

        [returned] = await state.claims.put_back(claims)
        engine.answer(0, 1, 2)

    assert [await _is_committed(state, one) for one in claims] == [
        one != returned for one in claims
    ]
    assert returned.index not in engine.rows


async def test_blocks_are_read_while_others_are_in_the_engine_but_no_more_than_are_held(
    state: State, storage: Storage, s3: S3
) -> None:
    engine, claims = _PatientEngine(), await _claims(state, storage, 6)
    async with (
        _reading(storage, s3) as (watched, read),
        _running(state, watched, engine, [[one] for one in claims]),
    ):
        await eventually(lambda: engine.rows.total() > 0 and len(read) == 3)
        assert engine.rows.total() == ROWS_A_SLICE

        engine.answer(*range(6))

    assert len(read) == 6
    assert [await _is_committed(state, one) for one in claims] == [True] * 6


@asynccontextmanager
async def _reading(storage: Storage, s3: S3) -> AsyncIterator[tuple[Storage, list[str]]]:
    """The same storage, and the path of each object that is read from it."""
    read = list[str]()
    with s3_proxy(s3.endpoint) as proxy:
        proxy.judge = lambda method, path: read.append(path) if method == "GET" else None
        watched = Storage(proxy.endpoint, s3.access_key, s3.secret_key, storage.bucket)
        yield watched, read
        watched.close()


@asynccontextmanager
async def _running(
    state: State,
    storage: Storage,
    engine: _PatientEngine,
    blocks: Sequence[Sequence[Claim]],
    *,
    room: int = 1,
) -> AsyncIterator[None]:
    """The blocks run, and have ended when the context is left. The engine has room for slices."""
    runner = SliceRunner(
        engine,
        BatchWatch(state),
        rows_in_engine=room * ROWS_A_SLICE,
        rows_per_engine_call=ROWS_A_SLICE,
    )
    own = BlockRunner(state, storage, runner, blocks_at_once=3)
    async with asyncio.TaskGroup() as running:
        for block in blocks:
            running.create_task(own.run(block))
        yield


async def _claims(state: State, storage: Storage, count: int) -> list[Claim]:
    """The claims on all slices of a new batch, none of which has begun."""
    batch_id = await in_progress(state, slices=count)
    await feed(state, batch_id, slices=count)
    stored = await storage.put("files/input", b'{"custom_id":"row"}\n' * ROWS_A_SLICE)
    # All slices have the same lines.
    return [
        replace(
            one,
            bucket=storage.bucket,
            key=stored.key,
            etag=stored.etag,
            slice=one.slice._replace(start=0, end=stored.size),
        )
        for one in await claim(state, slices=count, begun=False)
    ]


async def _has_begun(state: State, claim: Claim, *, slices: int) -> bool:
    return len((await state.claims.ending(claim.batch_id)).untold) == slices


async def _is_committed(state: State, claim: Claim) -> bool:
    return claim.index in await state.slices.parts(claim.batch_id)

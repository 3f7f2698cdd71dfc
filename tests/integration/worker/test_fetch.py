"""What a lane job reads of inputs when S3 fails for one of them, or for all."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from shared.errors import TransientError
from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from tests.batches import claimed
from tests.faults.s3_proxy import Refusal, S3Proxy, s3_proxy
from tests.servers import S3
from worker.outcomes import Outcome, SliceResult
from worker.rows import assemble
from worker.slice_io import fetch, settle

_BROKEN = Refusal(500, "UnknownError")


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with s3_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def behind_proxy(s3: S3, proxy: S3Proxy, storage: Storage) -> AsyncIterator[Storage]:
    keys = s3.access_key, s3.secret_key, storage.bucket
    behind = Storage(proxy.endpoint, *keys, attempts=1)
    yield behind
    behind.close()


async def test_an_object_that_s3_fails_for_alone_breaks_no_other_slice(
    state: State, storage: Storage, proxy: S3Proxy, behind_proxy: Storage
) -> None:
    [first, second] = await _claims(state, storage)
    proxy.judge = lambda _, path: _BROKEN if "broken" in path else None

    assert (await fetch(behind_proxy, first)).lines == b"{}\n" * 3
    assert (await fetch(behind_proxy, second)).lines is Outcome.INPUT_UNREAD


async def test_while_s3_is_away_nothing_is_said_of_an_object(
    state: State, storage: Storage, proxy: S3Proxy, behind_proxy: Storage
) -> None:
    [first, _] = await _claims(state, storage)
    proxy.judge = lambda *_: _BROKEN

    with pytest.raises(TransientError):
        await fetch(behind_proxy, first)


async def test_a_slice_that_cannot_be_read_goes_back_without_a_strike(
    state: State, storage: Storage
) -> None:
    [first, _] = await claimed(state)
    nothing = assemble(first.batch_id, first.slice, [], [])

    await settle(state, storage, first, SliceResult(Outcome.INPUT_UNREAD, nothing))

    assert await state.claims.inflight(first.batch_id) == 1
    assert (await state.batches.get(first.batch_id)).status == "in_progress"
    assert await state.lanes.suspects_count(first.lane) == 0


async def _claims(state: State, storage: Storage) -> list[Claim]:
    """One whose object can be read, and one whose object cannot."""
    claims = []
    for claim, key in zip(await claimed(state), ("files/whole", "files/broken"), strict=True):
        stored = await storage.put(key, b"{}\n" * 3)
        slice_ = claim.slice._replace(start=0, end=stored.size)
        claims.append(
            replace(claim, bucket=storage.bucket, key=key, etag=stored.etag, slice=slice_)
        )
    return claims

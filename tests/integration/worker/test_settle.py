"""What becomes of a slice that is settled twice, because Ray runs its block again."""

from shared.slices import Claim, SliceUsage
from shared.state import State
from shared.storage import Storage
from tests.batches import claim, claimed
from worker.outcomes import Outcome, SliceResult
from worker.rows import PartBody
from worker.slice_io import settle


async def test_a_slice_that_runs_again_with_other_answers_leaves_the_committed_part_alone(
    state: State, storage: Storage
) -> None:
    [first, _] = await claimed(state)
    await _settle(state, storage, first, b"first")
    before = await state.batches.get(first.batch_id)

    await _settle(state, storage, first, b"other")

    part = (await state.slices.parts(first.batch_id))[first.index]
    assert await storage.get(part.key, etag=part.etag) == b"first\n" * 3
    assert (await state.batches.get(first.batch_id)).fields == before.fields


async def test_a_slice_that_is_settled_again_before_its_commit_commits_what_was_written(
    state: State, storage: Storage
) -> None:
    [first, _] = await claimed(state)
    await storage.put(_key(first), b"first\n" * 3)

    await _settle(state, storage, first, b"first")

    part = (await state.slices.parts(first.batch_id))[first.index]
    assert part.key == _key(first)
    assert await storage.get(part.key, etag=part.etag) == b"first\n" * 3


async def test_of_two_sets_of_answers_neither_is_committed_and_the_slice_runs_again(
    state: State, storage: Storage
) -> None:
    [first, _] = await claimed(state)
    await storage.put(_key(first), b"first\n" * 3)

    await _settle(state, storage, first, b"other")

    assert await state.slices.parts(first.batch_id) == {}
    assert await state.claims.inflight(first.batch_id) == 1
    await state.lanes.feed(first.lane, [f"{first.batch_id}:{first.index}"])
    [again] = await claim(state)
    assert (again.index, again.epoch) == (first.index, first.epoch + 1)


async def _settle(state: State, storage: Storage, claim: Claim, word: bytes) -> None:
    body = PartBody((word + b"\n") * 3, b"", SliceUsage(completed=3))
    await settle(state, storage, claim, SliceResult(Outcome.DONE, body))


def _key(claim: Claim) -> str:
    return f"batches/{claim.batch_id}/parts/{claim.index:06d}-{claim.epoch}.jsonl"

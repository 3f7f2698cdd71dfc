"""Rows that were answered before are given their answers again, and nothing else."""

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.finaliser import Finaliser
from dispatcher.row_cache import CacheLimits, RowCache
from shared.answer_keys import to_cached_answer
from shared.catalog import Catalog
from shared.ledger.copies import copies_prefix
from shared.lifecycle import Event, Status
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import close
from tests.integration.cli.yards import Yards
from tests.integration.dispatcher.conftest import (
    OUTPUT_SECONDS,
    BatchYard,
    a_planner,
    good,
    line,
)
from worker.outcomes import Outcome, SliceResult
from worker.slice_io import fetch, settle
from worker.slice_run import SliceRun

_DAY = 86_400


def with_cache(
    state: State, storage: Storage, catalog: Catalog, *, rows: int = 1000, seconds: int = _DAY
) -> BatchYard:
    """A fleet with these limits of its cache."""
    cache = RowCache(state, storage, catalog, CacheLimits(seconds, rows))
    return BatchYard(
        state,
        storage,
        a_planner(state, storage, catalog, cache=cache),
        Finaliser(state, storage, output_seconds=OUTPUT_SECONDS, cache=cache),
    )


@pytest.fixture
def yard(state: State, storage: Storage, catalog: Catalog) -> BatchYard:
    return with_cache(state, storage, catalog)


def asking(*texts: str, prefix: str = "", **body: Any) -> bytes:
    """A request for each text; its name is the text with a prefix."""
    return b"".join(
        line(prefix + text, messages=[{"role": "user", "content": text}], **body) + b"\n"
        for text in texts
    )


class Ended:
    """A batch that has run: what its engine was asked, and its result lines."""

    def __init__(self, batch_id: str, asked: list[str], lines: list[dict[str, Any]]) -> None:
        self.id = batch_id
        self.asked = asked
        self.lines = lines

    @property
    def cached(self) -> list[str]:
        return [one["custom_id"] for one in self.lines if one.get("cached")]


async def ran(
    yard: BatchYard,
    body: bytes,
    *,
    result: Callable[[str], Any] = lambda text: good(f"answer to {text}"),
    before: Callable[[str], Any] | None = None,
    **changes: Any,
) -> Ended:
    """Plan and run a batch with a cache to its end."""
    batch_id = await yard.plan(body, **{"cache_seconds": _DAY, **changes})
    if before is not None:
        await before(batch_id)
    asked = await run_rows(yard, batch_id, result)
    return await ended(yard, batch_id, asked)


async def run_rows(
    yard: BatchYard,
    batch_id: str,
    result: Callable[[str], Any] = lambda text: good(f"answer to {text}"),
) -> list[str]:
    """Run the batch's slices; returns what the engine was asked."""
    asked: list[str] = []
    for claim in await yard.claim(batch_id):
        given = await fetch(yard.storage, claim)
        assert isinstance(given.lines, bytes)
        run = SliceRun(claim, given.lines, given.kept, pool="gpu")
        for chunk in run.chunks(100):
            run.enter(chunk)
            for position in chunk:
                text = json.loads(run.lines[position])["body"]["messages"][0]["content"]
                asked.append(text)
                run.answer(position, result(text))
            run.leave(chunk)
        await settle(yard.state, yard.storage, claim, SliceResult(Outcome.DONE, run.body()))
    return asked


async def ended(yard: BatchYard, batch_id: str, asked: list[str]) -> Ended:
    """The batch once it has ended, of which this was asked."""
    await yard.finaliser.finish(batch_id)
    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    lines = []
    for kind in ("output", "error"):
        if file_id := record.fields.get(f"{kind}_file_id"):
            file = await yard.state.files.get(record.tenant, file_id)
            lines += [json.loads(one) for one in (await yard.storage.get(file.key)).splitlines()]
    return Ended(batch_id, asked, lines)


async def ran_open(
    yard: BatchYard,
    catalog: Catalog,
    *additions: bytes,
    before: Callable[[str], Any] | None = None,
) -> Ended:
    """Run an open batch with a cache, as that of a pipeline's stage, to its end."""
    yards = Yards(yard, catalog)
    cache = RowCache(yard.state, yard.storage, catalog, CacheLimits(_DAY, 1000))
    batch_id = await yards.open(f"open-{secrets.token_hex(4)}", cache_seconds=_DAY)
    for body in additions:
        record = await yard.state.batches.get(batch_id)
        await yards.additions(cache).add(record, body)
        # Again, as after a crash, by somebody who knows no answers.
        assert (await yards.additions().add(record, body)).added == 0
    if before is not None:
        await before(batch_id)
    asked = await run_rows(yard, batch_id)
    await close(yard.state, yard.storage, batch_id)
    return await ended(yard, batch_id, asked)


async def rewritten(state: State, **changes: Any) -> None:
    """Change every entry of the tenant."""
    async for some in state.answers.entries("acme"):
        new = {
            key: to_cached_answer(one)._replace(**changes).to_text() for key, one in some.items()
        }
        await state.answers.add("acme", new, most=1000, seconds=_DAY)


async def test_what_was_answered_is_not_asked_again(yard: BatchYard, state: State) -> None:
    first = await ran(yard, asking("a", "b", "c", "d"))
    second = await ran(yard, asking("d", "a", "new", "b", prefix="again-"))

    assert (first.asked, first.cached) == (["a", "b", "c", "d"], [])
    assert second.asked == ["new"]
    assert second.cached == ["again-d", "again-a", "again-b"]
    assert [one["custom_id"] for one in second.lines] == [
        "again-d",
        "again-a",
        "again-new",
        "again-b",
    ]
    was = {one["custom_id"]: one["response"]["body"] for one in first.lines}
    for one in second.lines:
        if one.get("cached"):
            assert one["response"]["body"] == was[one["custom_id"].removeprefix("again-")]
            assert one["id"].startswith(second.id.replace("batch_", "batch_req_")[:34])
    record = await state.batches.get(second.id)
    assert [record.number(name) for name in ("total", "completed", "failed")] == [4, 4, 0]


async def test_a_line_with_a_byte_order_mark_alone_shifts_no_answer(yard: BatchYard) -> None:
    first = await ran(yard, b"\xef\xbb\xbf\n" + asking("a", "b", "c"))
    second = await ran(yard, asking("b", "c"))

    assert first.asked == ["a", "b", "c"]
    assert [one["response"]["body"]["choices"] for one in second.lines] == [
        ["answer to b"],
        ["answer to c"],
    ]


async def test_answers_are_the_same_bytes(yard: BatchYard, state: State) -> None:
    odd = b'{"choices": [ 1.0e0 , "\\u2028\xc3\xbc"],"usage" : {"prompt_tokens":3} }'
    await ran(yard, asking("a"), result=lambda _: (200, odd))
    second = await ran(yard, asking("a"))

    record = await state.batches.get(second.id)
    file = await state.files.get("acme", record.fields["output_file_id"])
    assert odd in await yard.storage.get(file.key)


async def test_cached_rows_cost_nothing(yard: BatchYard, state: State) -> None:
    await ran(yard, asking("a", "b"))
    second = await ran(yard, asking("a", "b"))

    record = await state.batches.get(second.id)
    assert second.asked == []
    assert record.number("queued_requests") == 0
    assert [record.number(name) for name in ("input_tokens", "output_tokens")] == [0, 0]
    assert record.fields["lane_tokens"] == "2/2"
    assert not record.fields.get("spent")


async def test_a_batch_without_a_cache_asks_all_and_gives_none(yard: BatchYard) -> None:
    await ran(yard, asking("a"), cache_seconds=0)
    await ran(yard, asking("b"))

    assert (await ran(yard, asking("a"))).asked == ["a"]
    assert (await ran(yard, asking("b"), cache_seconds=0)).asked == ["b"]


async def test_no_tenant_is_given_anothers_answers(yard: BatchYard, state: State) -> None:
    await ran(yard, asking("a"))

    assert (await ran(yard, asking("a"), tenant="globex")).asked == ["a"]
    keys = [
        {key async for some in state.answers.entries(tenant) for key in some}
        for tenant in ("acme", "globex")
    ]
    # Not even the keys say that both have asked the same.
    assert [len(one) for one in keys] == [1, 1]
    assert not keys[0] & keys[1]


@pytest.mark.parametrize(
    "body", [{"temperature": 0.5}, {"model": "other"}, {"max_tokens": 5}, {"seed": 1}]
)
async def test_another_body_or_model_is_asked(yard: BatchYard, body: dict[str, Any]) -> None:
    await ran(yard, asking("a"))

    assert (await ran(yard, asking("a", **body))).asked == ["a"]


async def test_the_order_of_fields_does_not_matter(yard: BatchYard) -> None:
    await ran(yard, asking("a", temperature=1, top_p=0.5))

    assert (await ran(yard, asking("a", top_p=0.5, temperature=1))).asked == []


async def test_a_model_that_was_changed_is_asked(
    yard: BatchYard, state: State, storage: Storage, catalog: Catalog
) -> None:
    await ran(yard, asking("a"))
    models = {
        name: model.model_copy(update={"revision": "v2"}) for name, model in catalog.models.items()
    }
    changed = with_cache(state, storage, catalog.model_copy(update={"models": models}))

    assert (await ran(changed, asking("a"))).asked == ["a"]
    assert (await ran(yard, asking("a"))).asked == []


async def test_errors_are_not_remembered(yard: BatchYard) -> None:
    refused = await ran(yard, asking("a"), result=lambda _: (400, b'{"error":{"message":"no"}}'))

    assert refused.cached == []
    assert (await ran(yard, asking("a"))).asked == ["a"]


async def test_it_has_an_end_which_use_does_not_put_off(yard: BatchYard, state: State) -> None:
    await ran(yard, asking("a"))
    await rewritten(state, until=9_999_999_999)
    await ran(yard, asking("a"))
    [entry] = [one async for some in state.answers.entries("acme") for one in some.values()]
    assert to_cached_answer(entry).until == 9_999_999_999

    await rewritten(state, until=1)

    assert (await ran(yard, asking("a"))).asked == ["a"]


async def test_an_answer_that_is_not_what_was_written_is_asked_again(
    yard: BatchYard, state: State
) -> None:
    await ran(yard, asking("a", "b"))
    async for some in state.answers.entries("acme"):
        key = next(iter(some))
        await state.answers.add("acme", {key: "garbage"}, most=1000, seconds=_DAY)
    once = await ran(yard, asking("a", "b"))
    await rewritten(state, digest="x" * 12)
    again = await ran(yard, asking("a", "b"))

    assert (len(once.asked), len(again.asked)) == (1, 2)


async def test_no_answer_outlives_its_file(yard: BatchYard, state: State) -> None:
    first = await ran(yard, asking("a"))
    record = await state.batches.get(first.id)
    await state.files.delete("acme", record.fields["output_file_id"])

    assert (await ran(yard, asking("a"))).asked == ["a"]


async def test_an_object_that_is_gone_or_replaced_is_a_miss(
    yard: BatchYard, state: State, storage: Storage
) -> None:
    first = await ran(yard, asking("a"))
    record = await state.batches.get(first.id)
    file = await state.files.get("acme", record.fields["output_file_id"])
    await storage.put(file.key, b"x" * file.bytes)

    assert (await ran(yard, asking("a"))).asked == ["a"]


async def test_answers_that_are_lost_before_their_rows_run_are_asked_again(
    yard: BatchYard, storage: Storage
) -> None:
    await ran(yard, asking("a", "b"))

    async def lose(batch_id: str) -> None:
        keys = await storage.keys(copies_prefix(batch_id))
        assert [key for key in keys if key.endswith("-answers.jsonl")]
        await storage.remove(keys)

    second = await ran(yard, asking("a", "new", "b"), before=lose)

    assert second.asked == ["a", "new", "b"]
    assert [one["custom_id"] for one in second.lines] == ["a", "new", "b"]


async def test_what_is_added_to_a_stage_is_not_asked_again(
    yard: BatchYard, catalog: Catalog
) -> None:
    await ran(yard, asking("a", "b", "c", "d"))
    second = await ran_open(yard, catalog, asking("a", "new", "b"), asking("c", "d"))
    third = await ran_open(yard, catalog, asking("x"), asking("new", "a"))

    assert (second.asked, second.cached) == (["new"], ["a", "b", "c", "d"])
    assert [one["custom_id"] for one in second.lines] == ["a", "new", "b", "c", "d"]
    assert (third.asked, third.cached) == (["x"], ["new", "a"])
    record = await yard.state.batches.get(third.id)
    assert [record.number(name) for name in ("completed", "cached_rows")] == [3, 2]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_answers_of_a_stage_that_are_lost_or_damaged_are_asked_again(
    is_lost: bool, yard: BatchYard, storage: Storage, catalog: Catalog
) -> None:
    await ran(yard, asking("a", "b"))

    async def lose(batch_id: str) -> None:
        keys = await storage.keys(copies_prefix(batch_id))
        [key] = [key for key in keys if key.endswith("-answers.jsonl")]
        body = await storage.get(key)
        await storage.remove([key])
        if not is_lost:
            await storage.put(key, body.replace(b"answer", b"ANSWER"))

    second = await ran_open(yard, catalog, asking("a", "new"), asking("c"), before=lose)

    assert second.asked == ["a", "new", "c"]
    assert [one["custom_id"] for one in second.lines] == ["a", "new", "c"]


async def test_the_names_of_rows_that_never_ran_are_there_without_the_answers(
    yard: BatchYard, storage: Storage, catalog: Catalog
) -> None:
    await ran(yard, asking("a"))
    yards = Yards(yard, catalog)
    cache = RowCache(yard.state, storage, catalog, CacheLimits(_DAY, 1000))
    batch_id = await yards.open("cancelled", cache_seconds=_DAY)
    record = await yard.state.batches.get(batch_id)
    await yards.additions(cache).add(record, asking("a", "b"))
    keys = await storage.keys(copies_prefix(batch_id))
    await storage.remove([key for key in keys if key.endswith("-answers.jsonl")])

    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert [one["custom_id"] for one in await yard.parsed(shape.error_file_id)] == ["a", "b"]


async def test_cleared_it_has_nothing(yard: BatchYard, state: State) -> None:
    await ran(yard, asking("a", "b"))

    assert await state.answers.clear("acme") == 2
    assert await state.answers.clear("acme") == 0
    assert (await ran(yard, asking("a"))).asked == ["a"]


async def test_a_tenant_has_no_more_rows_than_it_may(
    state: State, storage: Storage, catalog: Catalog
) -> None:
    yard = with_cache(state, storage, catalog, rows=2)
    await ran(yard, asking("a", "b", "c"))

    assert await state.answers.count("acme") == 2
    assert len((await ran(yard, asking("a", "b", "c"))).asked) == 1

    # What is over makes room.
    await rewritten(state, until=1)
    await ran(yard, asking("d", "e"))
    assert (await ran(yard, asking("d", "e"))).asked == []


async def test_an_operator_can_turn_it_off(
    state: State, storage: Storage, catalog: Catalog
) -> None:
    yard = with_cache(state, storage, catalog, seconds=0)
    await ran(yard, asking("a"))

    assert (await ran(yard, asking("a"))).asked == ["a"]

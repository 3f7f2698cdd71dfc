"""The order of rows in front of a real engine, which computes four rows at once."""

from collections.abc import Iterator
from itertools import count
from random import random, sample
from time import perf_counter
from typing import Any

import pytest

from shared.cache_salt import CacheSalts
from shared.catalog import Lane
from tests.engine.calls import Call, tiny_catalog
from tests.engine.conftest import a_ray
from tests.eventually import eventually
from worker.engine_numbers import PREEMPTED
from worker.live_scaling import LIVE_METRIC, NEEDED_METRIC

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

SEATS = 4
LANE = Lane("tiny", "cpu")
#: Takes an engine of four seats minutes.
GIANT_ROWS = 400


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The application of an engine that has answered its first row."""
    from worker.engine_deployment import ensure_engine

    catalog = tiny_catalog(tmp_path_factory.mktemp("models"), LANE, {"CPU": 1}, seats=SEATS)
    with a_ray(16):
        yield ensure_engine(catalog, LANE)


async def test_a_replica_reports_how_many_of_them_batches_need(engine: str) -> None:
    from worker.engine_client import EngineClient

    client = EngineClient(engine)
    await client.wake()
    await client.expect(1.5)

    answers = client._connect().broadcast("record_autoscaling_stats")  # noqa: SLF001  # as Serve asks
    told = await answers.results_async()

    assert told == [{LIVE_METRIC: 0.0, NEEDED_METRIC: 1.5}]


async def test_results_come_as_rows_end(engine: str) -> None:
    call = Call(engine, "mixed", [600, 1, 1, 1])

    await eventually(lambda: len(call.results) == 3, timeout=300)
    [long, *_] = await call.end()

    assert list(call.results)[-1] == 0
    assert long["usage"]["completion_tokens"] == 600


@pytest.mark.parametrize("fields", [{}, {"priority": -(10**12)}], ids=["plain", "own priority"])
async def test_a_batch_of_five_rows_does_not_wait_for_a_giant_one(
    engine: str, fields: dict[str, Any]
) -> None:
    giant = Call(engine, f"giant-{len(fields)}", [100] * GIANT_ROWS, **fields)
    await eventually(lambda: len(giant.results) > SEATS, timeout=300)

    small = Call(engine, f"small-{len(fields)}", [4] * 5)
    before = len(giant.results)
    await small.end()
    meanwhile = len(giant.results) - before
    await giant.cancel()

    # A row of the giant takes 25 times as long as one of the small batch.
    assert meanwhile < 3 * SEATS


async def test_a_call_that_is_cancelled_leaves_its_seats_and_its_places_at_once(
    engine: str,
) -> None:
    from ray import serve

    from worker.engine_status import DEPLOYMENT

    handle = serve.get_deployment_handle(DEPLOYMENT, engine)

    async def are_in() -> bool:
        return int(await handle.unfinished.remote()) >= SEATS

    giant = Call(engine, "cancelled", [900] * GIANT_ROWS)
    await eventually(are_in, timeout=300)

    await giant.cancel()

    # There are 360,000 tokens before it if the giant's rows are still there.
    await Call(engine, "third", [1] * 20).end()


async def test_a_row_that_is_asked_for_again_has_the_same_answer(engine: str) -> None:
    [first] = await Call(engine, "again", [4], temperature=1.0).end()

    [second] = await Call(engine, "again", [4], temperature=1.0).end()

    assert first == second


async def test_a_row_whose_call_was_cancelled_is_answered_when_it_is_asked_for_again(
    engine: str,
) -> None:
    first = Call(engine, "gone", [300])
    await eventually(lambda: _something_runs(engine), timeout=60)
    await first.cancel()

    [answer] = await Call(engine, "gone", [300]).end()

    assert answer["usage"]["completion_tokens"] == 300


async def test_a_tenant_finds_only_its_own_prompts_in_the_cache(engine: str) -> None:
    from worker.engine_client import EngineClient

    salts = CacheSalts(b"secret", sharing=("north", "south"))
    text = "The same long beginning of a prompt, over and over again. " * 20
    messages = [{"role": "user", "content": text}]

    async def cached(tenant: str, batch_id: str) -> int:
        call = Call(engine, batch_id, [1], tenant=tenant, salts=salts, messages=messages)
        [answer] = await call.end()
        details = answer["usage"]["prompt_tokens_details"] or {}
        return int(details.get("cached_tokens", 0))

    [before] = await EngineClient(engine).numbers()

    assert await cached("acme", "first") == 0
    assert (its_own := await cached("acme", "its own")) > 0
    assert await cached("other", "another's") == 0
    assert await cached("north", "shared") == 0
    assert (shared := await cached("south", "shared too")) > 0
    [after] = await EngineClient(engine).numbers()
    assert after.prefix_hits - before.prefix_hits == its_own + shared
    assert after.prefix_queries - before.prefix_queries > 5 * 200
    assert (after.replica, after.live_micros) == (before.replica, 0)
    assert after.clock > before.clock


def test_vllm_tells_preemptions_by_the_number_that_is_counted() -> None:
    from vllm.v1.engine import EngineCoreEventType

    assert PREEMPTED == EngineCoreEventType.PREEMPTED


async def test_no_tenant_can_tell_by_the_time_what_another_has_sent(engine: str) -> None:
    salts, numbers = CacheSalts(b"secret"), count()

    async def seconds(tenant: str, texts: list[str]) -> float:
        began = perf_counter()
        calls = [
            Call(
                engine, f"timed-{next(numbers)}", [1], tenant=tenant, salts=salts,
                messages=[{"role": "user", "content": text}],
            )
            for text in texts
        ]  # fmt: skip
        for call in calls:
            await call.end()
        return perf_counter() - began

    async def turn(number: int) -> tuple[float, float, float]:
        """What a spy waits for prompts of the victim, for new ones, and for the same once more.

        Chance gives them their words, which are not equally long in tokens, and the first two
        their order: what follows the victim's own has times of its own.
        """
        known, fresh = (
            [f"{number} {word} {row} " + "is what was said, " * 120 for row in range(SEATS)]
            for word in sample(("early", "later"), 2)
        )
        await seconds("victim", known)
        if random() < 0.5:
            victims, new = await seconds("spy", known), await seconds("spy", fresh)
        else:
            new, victims = await seconds("spy", fresh), await seconds("spy", known)
        return victims, new, await seconds("spy", fresh)

    for round_ in range(5):
        turns = [await turn(24 * round_ + number) for number in range(24)]
        # Who has sent a prompt himself can tell. On a machine that does other work, nobody can.
        if sum(own < new for _, new, own in turns) >= 20:
            break
    else:
        pytest.fail("The times do not even show what the spy itself has sent.")
    assert 4 < sum(victims < new for victims, new, _ in turns) < 20


async def test_a_grammar_that_explodes_holds_up_nobody_else(engine: str) -> None:
    numbers = count()

    async def probe() -> float:
        began = perf_counter()
        await Call(engine, f"probe-{next(numbers)}", [2], tenant="neighbour").end()
        return perf_counter() - began

    await Call(engine, "warm", [4], structured_outputs={"choice": ["a", "b"]}).end()
    quiet = sorted([await probe() for _ in range(10)])
    # Each is another one, and would hold vLLM's event loop for seconds, and a core for minutes.
    calls = [
        Call(
            engine, f"explodes-{number}", [4],
            tenant="mallory", structured_outputs={"regex": f"(.?){{1,{15_000 + number}}}x"},
        )
        for number in range(2)
    ]  # fmt: skip
    probes = []
    while not all(call.task.done() for call in calls):
        probes.append(await probe())
    [form] = await Call(
        engine, "form", [9], ignore_eos=False, structured_outputs={"choice": ["aye", "nay"]}
    ).end()

    for call in calls:
        [error] = await call.end(400)
        assert error["error"]["code"] == "grammar_too_complex"
        assert error["error"]["param"] == "structured_outputs"
    assert len(probes) > 10
    # What compiles takes a processor, and nothing else.
    assert sorted(probes)[len(probes) // 2] < 5 * quiet[len(quiet) // 2] + 0.2
    assert max(probes) < 4
    assert form["choices"][0]["message"]["content"] in {"aye", "nay"}


async def test_a_request_that_would_kill_a_runner_is_refused_by_the_name_of_its_field(
    engine: str,
) -> None:
    words = [f"{'never say it ' * 20}{number}" for number in range(60)]

    [error] = await Call(engine, "many-words", [4], bad_words=words).end(400)
    await Call(engine, "few-words", [4], bad_words=words[:1]).end()

    assert error["error"]["param"] == "bad_words"


async def test_all_seconds_of_an_engine_are_those_of_its_rows_or_nobodys(engine: str) -> None:
    began, *before = await _uses(engine)

    lost = Call(engine, "given-up", [900])
    # It is the largest: among the others it would have its seat last.
    await eventually(lambda: _something_runs(engine), timeout=60)
    rows = Call(engine, "paid", [60] * 12)
    await rows.end()
    await lost.cancel()
    await eventually(lambda: _nothing_runs(engine), timeout=60)

    async def is_given_up() -> bool:
        return (await _uses(engine))[2] > before[1]

    # The replica counts it a moment after vLLM has let it go.
    await eventually(is_given_up, timeout=60)
    ended, *after = await _uses(engine)

    wall = ended - began
    of_rows, of_lost, of_live, idle = (b - a for a, b in zip(before, after, strict=True))
    assert of_rows + of_lost + of_live + idle == pytest.approx(wall, rel=0.001)
    assert rows.micros / 1e6 == pytest.approx(of_rows, rel=0.001)
    assert of_lost > 0
    assert of_live == 0


async def _uses(engine: str) -> list[float]:
    from ray import serve

    found = await serve.get_deployment_handle("engine", engine).uses.remote()
    return list(found)


async def _something_runs(engine: str) -> bool:
    return not await _nothing_runs(engine)


async def _nothing_runs(engine: str) -> bool:
    from ray import serve

    count: int = await serve.get_deployment_handle("engine", engine).unfinished.remote()
    return count == 0

"""How rows fall to the replicas of one engine: four that answer at once, with our routing."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from shared.ordering.work import Work
from tests.engine.conftest import a_ray

pytest.importorskip("ray", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray warns about itself.
    pytest.mark.filterwarnings("ignore"),
]

APP, REPLICAS = "even", 4
CALLS, ROWS = 1000, 16
LINE = b'{"url":"/v1/embeddings","body":{"model":"m","input":"7 words"}}'


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with a_ray(8):
        from benchmarks.stub_engine import deploy_stub

        deploy_stub(APP, REPLICAS)
        yield APP


async def test_four_replicas_have_even_shares_of_some_thousand_rows(engine: str) -> None:
    from ray import serve

    from worker.engine_client import EngineClient
    from worker.engine_status import DEPLOYMENT

    client, turns = EngineClient(engine), asyncio.Semaphore(32)

    async def call(number: int) -> int:
        works = [Work("batch", ROWS * number + row, "acme", 0, 0, 600, 10) for row in range(ROWS)]
        async with turns, aclosing(client.run_lines([LINE] * ROWS, works)) as groups:
            return sum([len(group) async for group in groups])

    answered = await asyncio.gather(*map(call, range(CALLS)))
    handle = serve.get_deployment_handle(DEPLOYMENT, engine)
    shares = await handle.broadcast("rows").results_async(timeout_s=60)

    assert answered == [ROWS] * CALLS
    assert len(shares) == REPLICAS
    assert sum(shares) == CALLS * ROWS
    # Who is faster for a while gets more.
    assert max(shares) <= 1.4 * min(shares)


def test_the_fewest_come_first_equals_in_turns_and_those_unknown_last() -> None:
    from worker.even_router import Turns

    turns = Turns()

    assert turns.next({"a": 2, "b": None, "c": 1}) == ["c", "a", "b"]
    assert [turns.next({"a": 1, "b": 1, "c": 1})[0] for _ in range(6)] == list("abcabc")
    # One that comes anew has had no turn.
    assert turns.next({"a": 0, "d": 0})[0] == "d"
    assert turns.next({}) == []

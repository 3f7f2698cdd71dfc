"""How rows fall to the replicas of one engine: four that answer at once, with our routing."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from shared.ordering.work import Work
from tests.engine.conftest import a_ray

if TYPE_CHECKING:
    from worker.engine_client import EngineClient

pytest.importorskip("ray", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray warns about itself.
    pytest.mark.filterwarnings("ignore"),
]

APP, REPLICAS = "even", 4
CALLS, ROWS = 200, 16
LINE = b'{"url":"/v1/embeddings","body":{"model":"m","input":"7 words"}}'


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with a_ray(8):
        from benchmarks.stub_engine import deploy_stub

        deploy_stub(APP, REPLICAS)
        yield APP


async def call(client: "EngineClient", *, number: int = 0, rows: int = 1) -> int:
    """How many of the rows of one call have an answer."""
    works = [Work("batch", rows * number + row, "acme", 0, 0, 600, 10) for row in range(rows)]
    async with aclosing(client.run_lines([LINE] * rows, works)) as groups:
        return sum([len(group) async for group in groups])


async def shares_of(app: str) -> list[int]:
    """How many rows each replica has answered, the fewest first."""
    from ray import serve

    from worker.engine_status import DEPLOYMENT

    handle = serve.get_deployment_handle(DEPLOYMENT, app)
    return sorted(await handle.broadcast("rows").results_async(timeout_s=60))


def asked_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The replicas that are asked how busy they are, as it happens."""
    from ray.serve._private.request_router.replica_wrapper import RunningReplica

    ask, asked = RunningReplica.get_queue_len, []

    async def noted(self: RunningReplica, *, deadline_s: float) -> int:
        asked.append(self.replica_id)
        return int(await ask(self, deadline_s=deadline_s))

    monkeypatch.setattr(RunningReplica, "get_queue_len", noted)
    return asked


async def test_four_replicas_have_even_shares_of_calls_one_after_another(engine: str) -> None:
    from worker.engine_client import EngineClient

    client = EngineClient(engine)

    # Of calls at once, whoever is faster for a while gets more.
    answered = [await call(client, number=number, rows=ROWS) for number in range(CALLS)]
    shares = await shares_of(engine)

    assert answered == [ROWS] * CALLS
    assert len(shares) == REPLICAS
    assert sum(shares) == CALLS * ROWS
    assert max(shares) - min(shares) <= 2 * ROWS


async def test_no_replica_is_asked_how_busy_it_is_before_a_call_after_a_long_rest(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.serve._private.request_router.common import ReplicaQueueLengthCache

    from worker.engine_client import EngineClient

    client = EngineClient(engine)

    assert await call(client) == 1
    # A busy one answers late, and Serve asks again, with longer and longer patience.
    asked = asked_from_now_on(monkeypatch)
    known_until = time.time()
    monkeypatch.setattr(ReplicaQueueLengthCache, "_is_timed_out", lambda _, at: at <= known_until)

    assert await call(client) == 1
    assert not asked


async def test_a_replica_that_is_new_is_not_asked_how_busy_it_is(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.stub_engine import StubReplica, deploy_stub, run_replicas
    from worker.engine_client import EngineClient

    del engine  # It has the cluster.
    asked = asked_from_now_on(monkeypatch)
    deploy_stub("growing", 1)
    client = EngineClient("growing")

    assert await call(client) == 1
    run_replicas("growing", StubReplica, 2, 0)
    shares: list[int] = []
    for _ in range(200):
        assert await call(client) == 1
        shares = await shares_of("growing")
        if len(shares) == 2 and shares[0] == 3:
            break
    # From its first call on it has every second one.
    assert shares[0] == 3
    assert not asked


async def test_who_has_all_results_does_not_wait_for_the_end_of_the_call(engine: str) -> None:
    from benchmarks.stub_engine import StubReplica, deploy_replicas
    from worker.engine_client import EngineClient
    from worker.engine_errors import Results

    del engine  # It has the cluster.

    class Lasting(StubReplica):
        """Its calls last longer than their results."""

        async def run_lines(
            self, lines: Sequence[bytes], order: Sequence[Work]
        ) -> AsyncGenerator[Results, None]:
            async with aclosing(super().run_lines(lines, order)) as groups:
                async for group in groups:
                    yield group
            await asyncio.sleep(3600)

    deploy_replicas("lasting", Lasting, 1)
    client = EngineClient("lasting")
    async with asyncio.timeout(300):
        assert [await call(client, number=number, rows=3) for number in range(3)] == [3, 3, 3]


async def test_a_replica_that_gives_rows_back_gets_none_for_a_while_unless_it_is_alone(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import serve

    from benchmarks.stub_engine import StubReplica, deploy_replicas
    from worker import avoided_replicas
    from worker.engine_client import EngineClient
    from worker.engine_errors import EngineYieldsError, Results

    del engine  # It has the cluster.

    class Yielding(StubReplica):
        """Gives its first rows back."""

        async def run_lines(
            self, lines: Sequence[bytes], order: Sequence[Work]
        ) -> AsyncGenerator[Results, None]:
            if not self._rows:
                self._rows = len(lines)
                replica = serve.get_replica_context().replica_id.unique_id
                raise EngineYieldsError("people have the replica", replica)
            async with aclosing(super().run_lines(lines, order)) as groups:
                async for group in groups:
                    yield group

    deploy_replicas("yielding", Yielding, 2)
    client = EngineClient("yielding")

    async def is_answered() -> bool:
        try:
            return await call(client) == 1
        except EngineYieldsError:
            return False

    # First the one, and then the other one; both are avoided, so neither is.
    assert [await is_answered() for _ in range(4)] == [False, False, True, True]
    assert await shares_of("yielding") == [2, 2]

    [first, _] = avoided_replicas._until  # noqa: SLF001  # the order is that of the dictionary
    monkeypatch.setattr(avoided_replicas, "_until", {})
    avoided_replicas.avoid(first)
    assert [await is_answered() for _ in range(6)] == [True] * 6
    assert await shares_of("yielding") == [2, 8]


def test_the_fewest_come_first_equals_in_turns_and_those_unknown_last() -> None:
    from worker.even_router import Turns

    turns = Turns()

    assert turns.next({"a": 2, "b": None, "c": 1}) == ["c", "a", "b"]
    assert [turns.next({"a": 1, "b": 1, "c": 1})[0] for _ in range(6)] == list("abcabc")
    # One that comes anew has had no turn.
    assert turns.next({"a": 0, "d": 0})[0] == "d"
    assert turns.next({}) == []

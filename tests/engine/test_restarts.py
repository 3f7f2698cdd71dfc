"""An engine whose core dies starts another one in its replica, with all that stands before it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cli.models.tiny import make_tiny_chat_model
from shared.catalog import Catalog, Lane
from tests.answers import answers
from tests.engine.conftest import a_ray
from tests.engine.deaths import answer_next, engine_core, fronts, kill_core, replica_of
from tests.eventually import eventually

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(900),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]


def line(**fields: Any) -> bytes:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = {"custom_id": "row-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(request).encode()


SHORT = line(max_tokens=8, temperature=0)
LONG = line(max_tokens=900, ignore_eos=True)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from worker.engine_deployment import ensure_engine

    folder = tmp_path_factory.mktemp("models")
    make_tiny_chat_model(folder / "tiny")
    catalog = Catalog.model_validate(
        {
            "pools": {"cpu": {"resources": {"CPU": 1}}},
            "models": {
                "tiny": {
                    "source": str(folder / "tiny"),
                    "pools": ["cpu"],
                    "fronts": 2,
                    "engine": {"max_model_len": 1024, "max_num_seqs": 32, "enforce_eager": True,
                               "dtype": "float32"},
                    "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "TORCH_COMPILE_DISABLE": 1},
                },
            },
        }
    )  # fmt: skip
    with a_ray(8):
        yield ensure_engine(catalog, Lane("tiny", "cpu"))


async def answer(app_name: str) -> Any:
    """What the engine writes to a row that it always answers alike."""
    from worker.engine_client import EngineClient

    [(status, body)] = await answers(EngineClient(app_name), [SHORT])
    assert status == 200
    return json.loads(body)["choices"]


async def test_a_core_that_dies_gets_a_successor_in_the_same_replica(app: str) -> None:
    from worker.engine_client import EngineClient
    from worker.engine_status import EngineState, engine_state

    said = await answer(app)
    before, its_fronts = engine_core(app), fronts(app)
    replica = replica_of(before)
    assert replica is not None
    assert len(its_fronts) == 2

    killed = await kill_core(app, LONG)
    # One of those that come meanwhile.
    assert await answer(app) == said

    core = engine_core(app)
    assert killed == before
    assert core not in {None, killed}
    assert replica_of(core) == replica
    assert engine_state(app) == EngineState(1, 0)
    await eventually(lambda: len(fronts(app)) == 2, timeout=60)
    assert not its_fronts & fronts(app)
    [numbers] = await EngineClient(app).numbers()
    assert numbers.start is not None
    assert numbers.start.restarts == 1
    stages = numbers.start.last_restart_stages
    assert list(stages) == ["configuration", "core", "weights", "profile", "server", "fronts"]
    assert list(numbers.start.stages)[:2] == ["process", "imports"]
    assert all(one[0] == 200 for one in await answers(EngineClient(app), [SHORT] * 50))


async def test_a_call_that_comes_while_a_core_starts_waits_for_it(app: str) -> None:
    await kill_core(app, LONG)

    said = await asyncio.gather(*(answer(app) for _ in range(5)))

    assert all(one == said[0] for one in said)


async def test_a_core_that_dies_at_once_again_gives_way_to_another_replica(app: str) -> None:
    replica = replica_of(engine_core(app))
    assert replica is not None
    await kill_core(app, LONG)
    # It has answered nothing, and dies with its first rows.
    await eventually(lambda: engine_core(app) is not None, timeout=60)

    await kill_core(app, LONG)
    await answer_next(app, SHORT)

    assert not replica.is_running()
    assert replica_of(engine_core(app)) != replica

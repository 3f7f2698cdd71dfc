"""An engine that somebody removes from Ray Serve by hand, while its lane job lives."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.catalog import Lane
from tests.answers import answers
from tests.engine.calls import tiny_catalog
from tests.engine.conftest import a_ray
from tests.eventually import eventually
from worker.engine_errors import EngineUnavailableError

if TYPE_CHECKING:
    from worker.engine_client import EngineClient

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(1200),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

LANE = Lane("tiny", "cpu")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
LINE = json.dumps(
    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY}
).encode()


async def test_a_removed_engine_is_deployed_again_and_answers_who_knew_it(tmp_path: Path) -> None:
    from ray import serve

    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine, restore_engine

    catalog = tiny_catalog(tmp_path, LANE, {"CPU": 1}, seats=8)
    with a_ray(8):
        client = EngineClient(ensure_engine(catalog, LANE))
        [(status, _)] = await answers(client, [LINE])
        assert status == 200
        assert not restore_engine(catalog, LANE)

        serve.delete(catalog.app_name(LANE))

        assert restore_engine(catalog, LANE)
        assert not restore_engine(catalog, LANE)
        await eventually(lambda: _is_answered(client))


async def _is_answered(client: "EngineClient") -> bool:
    """Until Serve has told a handle of the new engine, it raises what every caller tries again."""
    try:
        [(status, _)] = await answers(client, [LINE])
    except EngineUnavailableError:
        return False
    return status == 200

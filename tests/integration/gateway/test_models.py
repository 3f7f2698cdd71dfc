import pytest
from openai import NotFoundError

from shared.engines import EngineRecord, Replica
from shared.state import State
from tests.integration.gateway.conftest import Caller

NAMES = ["tiny", "ears", "meta-llama/Llama-3.1-8B", "my-adapter"]


async def test_every_model_and_adapter_is_listed(acme: Caller) -> None:
    assert [model.id async for model in acme.openai.models.list()] == NAMES


@pytest.mark.parametrize("name", NAMES)
async def test_a_model_is_retrieved_slashes_and_all(name: str, acme: Caller) -> None:
    model = await acme.openai.models.retrieve(name)

    assert (model.id, model.object, model.owned_by) == (name, "model", "batchyard")
    assert model.created > 1_600_000_000


async def test_a_model_tells_its_endpoints(acme: Caller) -> None:
    models = {model.id: model async for model in acme.openai.models.list()}

    chat = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
    assert (models["tiny"].model_extra or {})["endpoints"] == chat
    one = await acme.openai.models.retrieve("my-adapter")
    assert (one.model_extra or {})["endpoints"] == chat


async def test_a_model_tells_whether_it_takes_live_calls_and_whether_its_engine_runs(
    acme: Caller, gateway_state: State
) -> None:
    engine = EngineRecord(
        lane="tiny@cpu",
        state="running",
        since=0.0,
        seen_at=1.0,
        replicas=(Replica("a", "running"),),
    )
    before = (await gateway_state.engines.last()).number
    assert await gateway_state.engines.look(before, [engine], [], day=0)

    models = {model.id: model.model_extra or {} async for model in acme.openai.models.list()}
    one = (await acme.openai.models.retrieve("tiny")).model_extra or {}

    wanted = {"live": True, "state": "warm", "replicas": 1}
    assert {name: models["tiny"][name] for name in wanted} == wanted
    assert {name: one[name] for name in wanted} == wanted
    assert (models["my-adapter"]["live"], models["my-adapter"]["state"]) == (False, "cold")


async def test_an_unknown_model_is_not_found(acme: Caller) -> None:
    with pytest.raises(NotFoundError, match="The model 'x/y' does not exist") as refused:
        await acme.openai.models.retrieve("x/y")

    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")

import pytest
from openai import NotFoundError

from tests.integration.gateway.conftest import Caller

NAMES = ["tiny", "meta-llama/Llama-3.1-8B", "my-adapter"]


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


async def test_an_unknown_model_is_not_found(acme: Caller) -> None:
    with pytest.raises(NotFoundError, match="The model 'x/y' does not exist") as refused:
        await acme.openai.models.retrieve("x/y")

    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")

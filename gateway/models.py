"""OpenAI's Models API: the catalog's models and their adapters."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.auth import Tenant
from gateway.dependencies import Use
from shared.errors import NotFoundError
from shared.openai.shapes import Model

router = APIRouter()


class Models(BaseModel):
    """All models; this listing has no pages."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/models")
async def list_models(_: Tenant, services: Use) -> Models:
    """All models that this gateway serves."""
    created = services.catalog_changed_at
    return Models(
        data=[Model(id=name, created=created) for name in services.catalog.served_names()]
    )


# A path, because names have slashes. Clients escape them; servers unescape them before routing.
@router.get("/models/{model:path}")
async def retrieve_model(model: str, _: Tenant, services: Use) -> Model:
    """One model."""
    if model not in services.catalog.served_names():
        raise NotFoundError(
            f"The model '{model}' does not exist", param="model", code="model_not_found"
        )
    return Model(id=model, created=services.catalog_changed_at)
